package tcpio

import "ftproxy/logbuffer"

// Split, for the fuzz test.
func (f Framing) Split(p []byte, from, maxBytes int) (payload []byte, size int, err error) {
	return f.split(p, from, maxBytes)
}

// Join, for the fuzz test.
func (f Framing) Join(dst, payload []byte) ([]byte, error) { return f.join(dst, payload) }

// DecodeJSON is for the fuzz test.
func DecodeJSON(p []byte) (logbuffer.Tuple, error) { return decodeJSON(p) }

// EncodeJSON is for the fuzz test.
func EncodeJSON(id string, b *logbuffer.Batch, t *logbuffer.Tuple) ([]byte, error) {
	return encodeJSON(id, b, t)
}

// SlotsTaken tells how many connections hold memory beyond their own 16 KiB.
func (s *Source) SlotsTaken() int { return len(s.slots) }

// Mutants of a source.
func (s *Source) TakeCutLines() { s.mutant.takeCutLines = true }
func (s *Source) NoSlots()      { s.mutant.noSlots = true }
func (s *Source) Unnumbered()   { s.mutant.unnumbered = true }

// Mutants of a sink.
func (s *Sink) AckAfterWrite() { s.mutant.ackAfterWrite = true }
func (s *Sink) BlameIdle()     { s.mutant.blameIdle = true }
func (s *Sink) KeepWindow()    { s.mutant.keepWindow = true }
func (s *Sink) AckUnreplied()  { s.mutant.ackUnreplied = true }
