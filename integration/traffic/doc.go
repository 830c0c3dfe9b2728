// Package traffic is an upstream and a downstream for ftproxy's HTTP source and sink, as applications behave: the
// upstream repeats itself and forgets after a crash, the downstream stores before it answers and drops repeated keys.
//
//	sender.go    the upstream
//	receiver.go  the downstream; split.go: what a request of the sink holds
//	serve.go     an HTTP server for either
//	gap.go       the longest time without a delivery
package traffic
