package main

// variableHelp says what each variable is for, by name without the prefix.
func variableHelp() map[string]string {
	return map[string]string{
		"NAME": "names the operator: lineage, transactional id, metrics; the same on all replicas",
		"SOURCE": "where tuples come from: one or more [name=]url, separated by white space or commas; see the " +
			"endpoints",
		"OPERATOR": "the application between; unset: a relay (operators come with a later version)",
		"SINK":     "where tuples go: as FTPROXY_SOURCE",
		"RECOVERY": "the recovery type to hold at least; unset: the strongest that the configuration can hold",
		"STATE":    "how the operator keeps its state (comes with operators)",
		"DEDUP": "a tuple id for deduplication, besides the position, which always applies: header:NAME, key, " +
			"json:/pointer, content or none; unset: header:Idempotency-Key for HTTP, none for others",
		"DEDUP_IDS":   "tuple ids that are remembered",
		"DEDUP_AGE":   "how long a tuple id is remembered, in replicated time",
		"SESSIONS":    "client sessions that are remembered; the one unused for longest gives way",
		"SESSION_AGE": "how long a session outlives its last tuple",
		"SINK_IDEMPOTENT": "declares that the HTTP and TCP receivers drop tuples that they already have (by " +
			"Idempotency-Key): delivery is then called precise",
		"MAX_ATTEMPTS": "how often a sink tries a tuple before it becomes a dead letter; 0: for ever",
		"DROP_READERS": "sinks (for Kafka: clusters) that are not configured any more and whose pending tuples are to be " +
			"dropped; while it is unset, the buffer keeps them until the sink is configured again and has delivered them",
		"NODE":       "this node's name among the peers; unset: the host name, or FTPROXY_NAME for a node alone",
		"PEERS":      "all nodes of the group, this one included, as name=host:port; unset: one node alone",
		"PEERS_EVEN": "allows an even number of peers, which survives no more failures than one fewer",
		"LISTEN":     "where peers reach this node; unset: its address in FTPROXY_PEERS",
		"DATA_DIR": "the folder of this node's data, used by no other process; unset: ftproxy-data/NAME in the " +
			"working folder",
		"ELECTION_TIMEOUT": "how long a leader may be silent before the others elect one; a quarter of it must cover the " +
			"disk's slowest writes",
		"BUFFER_MAX_BYTES":  "what the buffer retains before sources wait",
		"BUFFER_TAIL_BYTES": "the newest part of the buffer, held in memory",
		"SEGMENT_BYTES":     "the size of a segment file",
		"SNAPSHOT_BYTES":    "the log written between two snapshots",
		"DISK_FREE_BYTES":   "free disk space below which sources wait; 0: chosen from the disk and the snapshot size",
		"TUPLE_MAX_BYTES":   "the largest tuple, 16 MiB at most",
		"DEAD_MAX":          "unresolved dead letters at which the sink that makes them waits",
		"CONNECTIONS":       "open client connections of each listening source",
		"DRAIN_TIMEOUT": "how long an orderly shutdown waits for the sinks to empty the buffer, unless the other nodes can " +
			"go on with it; whoever kills the process should wait 15 s longer",
		"STALL_AFTER": "how long a source or sink may get nothing done before /readyz says so",
		"TLS_CERT_FILE": "this node's certificate (PEM): to peers, in https, tcps and ftproxys sources, and as the " +
			"client's in such sinks; read again when it changes",
		"TLS_KEY_FILE": "its key (PEM)",
		"TLS_CA_FILE": "who signs the certificates of peers, certified clients and TLS receivers (PEM); unset, the " +
			"system's authorities sign those of receivers",
		"INSECURE":            "allows peers without TLS on an address that is not loopback",
		"KAFKA_TLS_CA_FILE":   "who signs the brokers' certificates (PEM); unset: the system's authorities",
		"KAFKA_TLS_CERT_FILE": "the client certificate for brokers (PEM)",
		"KAFKA_TLS_KEY_FILE":  "its key (PEM)",
		"KAFKA_SASL":          "how ftproxy authenticates to brokers; unset: not",
		"KAFKA_USER":          "the user name for it",
		"KAFKA_PASSWORD":      "the password for it",
		"SINK_AUTHORIZATION":  "the Authorization header that HTTP sinks send",
		"ADMIN_ADDR":          "where /livez, /readyz, /metrics, /status and /dead are served; it has no authentication",
		"LOG_FORMAT":          "the format of the log, written to standard error",
		"LOG_LEVEL":           "the least level that is logged",
	}
}
