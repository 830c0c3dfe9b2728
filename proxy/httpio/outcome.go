package httpio

import "fmt"

// verdict is what an outcome of an attempt means for its tuples.
type verdict uint8

const (
	verdictAck   verdict = iota // delivered
	verdictRetry                // again, with growing waits
	verdictFinal                // again a set number of times, then a dead letter
)

// outcome is a row of the table: a range of statuses, and what they mean. Status 0 is no answer at all.
type outcome struct {
	from, to int
	verdict  verdict
	because  string
}

// outcomes is the table of what an application's answers mean. The first row that holds the status counts. OUTCOMES.md
// is made of it.
func outcomes() []outcome {
	return []outcome{
		{0, 0, verdictRetry, "no answer: refused, reset, timed out, name or TLS failure; the same Idempotency-Key again"},
		{200, 299, verdictAck, "the application has it"},
		{408, 408, verdictRetry, "request timeout"},
		{425, 425, verdictRetry, "too early"},
		{429, 429, verdictRetry, "too many requests; Retry-After is honoured"},
		{500, 599, verdictRetry, "the application is in trouble; Retry-After is honoured"},
		{300, 399, verdictFinal, "redirects are not followed: set the URL that is meant"},
		{400, 499, verdictFinal, "the application refuses the tuple"},
		{100, 999, verdictFinal, "not a status that HTTP knows"},
	}
}

// verdictOf looks a status up.
func verdictOf(status int) verdict {
	for _, o := range outcomes() {
		if o.from <= status && status <= o.to {
			return o.verdict
		}
	}
	return verdictFinal
}

// String names the verdict as OUTCOMES.md does.
func (v verdict) String() string {
	switch v {
	case verdictAck:
		return "acknowledged"
	case verdictRetry:
		return "retried, for ever unless attempts are limited; then a dead letter"
	default:
		return "tried the set number of times, then a dead letter"
	}
}

// name writes the row's statuses.
func (o outcome) name() string {
	switch {
	case o.to == 0:
		return "no answer"
	case o.from == o.to:
		return fmt.Sprint(o.from)
	case o.to == 999:
		return "any other"
	case o.from == 400:
		return "other 4xx"
	default:
		return fmt.Sprintf("%dxx", o.from/100)
	}
}
