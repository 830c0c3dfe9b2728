package proxy

// RestartHalted switches off that a halt waits for a human.
func (s *Supervisor) RestartHalted() { s.restartHalted = true }

// Eager switches off that waits grow.
func (b *Backoff) Eager() { b.eager = true }
