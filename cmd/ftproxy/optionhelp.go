package main

// optionHelp says what each option of a URL is for, by kind of endpoint and option.
func optionHelp() map[string]string {
	const (
		clients = "with TLS: whoever connects, or only who has a certificate that FTPROXY_TLS_CA_FILE signed"
		over    = "what happens when the sink leaves more than over_bytes behind it: the sources wait in the end, or its " +
			"oldest tuples are dropped or become dead letters"
		overBytes = "see over"
		cut       = "a tuple is a line, or a frame behind four bytes of length (big-endian)"
	)
	return map[string]string{
		"source.http.tuples":   "tuples in one request at most",
		"source.http.deadline": "how long a request may take to become durable before 504 is answered",
		"source.http.clients":  clients,

		"source.tcp.framing": cut,
		"source.tcp.replies": "what is answered: nothing; `ok <n>` or `error <text>` for each tuple; the same within a " +
			"session that outlives connections",
		"source.tcp.format":  "a tuple is its value, or a JSON object with key, value, headers and time",
		"source.tcp.idle":    "a connection that sends nothing for so long is closed",
		"source.tcp.clients": clients,

		"source.kafka.start":   "where a partition is begun that was never read; a time is in milliseconds or RFC 3339",
		"source.kafka.on_loss": "what to do when unread records are gone or a topic was made anew: stop, or go on at an end",
		"source.kafka.group":   "a consumer group whose offsets follow, for lag tools; it is never read",

		"source.ftproxy.sink":    "the name of the sink that what arrives is for; unset: all sinks",
		"source.ftproxy.clients": clients,

		"sink.http.batch":          "tuples in one POST; each has an id of its own",
		"sink.http.format":         "how several tuples are written: all that they carry, or values alone, a line each",
		"sink.http.in_flight":      "POSTs under way at once, one for each key at most",
		"sink.http.timeout":        "the longest wait for an answer",
		"sink.http.final_attempts": "how often a tuple is sent that is refused for good, before it becomes a dead letter",
		"sink.http.query":          "the query that the receiver's URL has, percent-encoded",
		"sink.http.event_type":     "the CloudEvents type of tuples that have none",
		"sink.http.event_source":   "the CloudEvents source of tuples that have none; unset: /ftproxy/ and the sink's name",
		"sink.http.over":           over,
		"sink.http.over_bytes":     overBytes,

		"sink.tcp.framing":    cut,
		"sink.tcp.replies":    "whether each tuple is answered; an answer that begins with `error` means: not taken",
		"sink.tcp.format":     "as for the source; the object has an id too, the same each time the tuple is sent",
		"sink.tcp.window":     "tuples that are sent before their replies are awaited, and may come again after a failure",
		"sink.tcp.timeout":    "the longest wait for a reply",
		"sink.tcp.over":       over,
		"sink.tcp.over_bytes": overBytes,

		"sink.kafka.mode":        "exactly once, or at least once with an idempotent producer; the same all over a cluster",
		"sink.kafka.cluster":     "names the cluster: sinks of one name share one transaction; it names the cursor too",
		"sink.kafka.compression": "of what is written; the same for all on one cluster",
		"sink.kafka.linger":      "how long a transaction waits for more; unset: not at all",
		"sink.kafka.replication": "the replication factor with which the topic for the marker is created",
		"sink.kafka.resume": "only after ftproxy stopped because the marker does not fit its log: go on from the " +
			"confirmed offset, and write again what comes after it",

		"sink.ftproxy.timeout": "the longest wait for an answer",
		"sink.ftproxy.allow_loss": "go on although the receiver misses tuples that are gone here: set beside over, or " +
			"when a human has decided so",
		"sink.ftproxy.over":       over,
		"sink.ftproxy.over_bytes": overBytes,
	}
}
