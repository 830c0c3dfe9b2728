package tcpio

// Split, for the fuzz test.
func (f Framing) Split(p []byte, from, maxBytes int) (payload []byte, size int, err error) {
	return f.split(p, from, maxBytes)
}

// Join, for the fuzz test.
func (f Framing) Join(dst, payload []byte) ([]byte, error) { return f.join(dst, payload) }

// DecodeJSON and EncodeJSON, for the fuzz test.
var (
	DecodeJSON = decodeJSON
	EncodeJSON = encodeJSON
)

// SlotsTaken tells how many connections hold memory beyond their own 16 KiB.
func (s *Source) SlotsTaken() int { return len(s.slots) }
