// Package proxytest holds a replicated log's two ends in memory, for tests of sources and sinks.
//
//	source under test ─Append─▶ Log ─Read─▶ Outlet ─▶ sink under test
//	                             ▲
//	                  Feed ──────┘   (or the test reads Tuples and feeds by itself)
//
// [Log] is a proxy.Intake that judges every batch by its rule, as the replicated state does, and remembers what it
// admitted. [Outlet] is a proxy.Outlet on the same Log. Both can be told to fail in the ways that their contracts
// allow, and in no other. Nothing is replicated and nothing is durable; there is one mutex and no goroutine.
//
// Files: log.go (Log), judge.go (deduplication), outlet.go (Outlet), wait.go (waiting for conditions in tests).
package proxytest
