// Package topic is an upstream and an auditor on Kafka topics: the upstream writes one stream to each partition and
// repeats itself, the auditor reads what a read_committed consumer sees and judges it.
//
//	topic.go     topics and clients
//	upstream.go  the upstream
//	audit.go     the auditor
package topic
