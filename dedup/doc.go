// Package dedup remembers which tuples were seen, so that a replayed one is dropped. It is a pure function of the calls
// made to it: no clock, no goroutine, no I/O and no order that differs between two replicas that make the same calls.
// Nothing here is safe for concurrent use.
//
// Two kinds of identity are judged, the position first and the id only for tuples that the position lets through:
//
//   - By position (positions.go): the last position of each source. One number a source, exact for ever: this is what
//     makes an edge precise. A client session is a source that has to be opened first and that expires.
//   - By id (window.go): 128-bit ids in a window that is bounded by count and by age, for sources without positions.
//
// table.go puts the two together and is what a caller uses; codec.go reads and writes a Table.
//
// # What is not obvious
//
//   - A duplicate id still advances its source's position; a position that is refused or a duplicate touches no id.
//   - The id window is ordered by last use: a repeat makes an id young again. An id is forgotten once it was not seen
//     for the window's age, or once as many other ids as the window counts were seen since. Then the same id is new.
//   - Positions of ordinary sources are never forgotten, since a forgotten one would admit a replay. Their number is
//     bounded all the same: a batch of a new source beyond the bound is refused (Full) until the bound is raised.
//   - Sessions may be forgotten, because the use of an unknown session is refused (Expired) and never taken as new. The
//     one that was not used for the longest time goes first.
//   - Time is whatever the caller says, in milliseconds; it must not go back. It is the replicated time of the log.
package dedup
