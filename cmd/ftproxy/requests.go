package main

import "ftproxy/proxy/httpio"

// requests shows what a listening source has answered.
func requests(s *sample, name string, source any) {
	h, ok := source.(interface{ Stats() httpio.SourceStats })
	if !ok {
		return
	}
	stats := h.Stats()
	for _, x := range []struct {
		outcome string
		count   uint64
	}{{"accepted", stats.Requests}, {"refused", stats.Refused - stats.Unknown}, {"unknown", stats.Unknown}} {
		s.counter("requests_total", "Requests to a listening source.", float64(x.count), "source", name, "outcome", x.outcome)
	}
	s.counter("tuples_without_id_total", "Tuples admitted without the id that FTPROXY_DEDUP names.",
		float64(stats.WithoutID), "source", name)
}
