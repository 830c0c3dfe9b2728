// Package checker judges a run of ftproxy from outside: it compares what an upstream sent with what is visible
// downstream, and knows nothing of what happens between the two.
//
// A run consists of streams, each a sequence numbered 1, 2, 3 … whose order must hold (a key, a partition, a sender).
// A tuple's bytes follow from its stream, number and size alone, so that a tuple that was cut, mixed or invented on its
// way is found too.
//
//	payload.go   the bytes of tuple n of a stream, and back
//	checker.go   lost, duplicated, reordered, torn
//	trail.go     the lineage, offset and index headers that ftproxy puts on Kafka records
//
// Nothing here is safe for concurrent use; callers serialise.
package checker
