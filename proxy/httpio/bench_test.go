package httpio_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ftproxy/logbuffer"
	"ftproxy/proxy/httpio"
	"ftproxy/proxy/proxytest"
)

// BenchmarkSink measures tuples of 100 bytes delivered to a local application, from a log in memory.
func BenchmarkSink(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
			}))
			defer server.Close()
			sink, err := httpio.NewSink(httpio.SinkConfig{
				Name: "app", URL: server.URL, Batch: batch, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			log := proxytest.NewLog("lin")
			out := log.Outlet("app")
			value := []byte(`"` + strings.Repeat("x", 98) + `"`)
			for from := 0; from < b.N; from += 100 {
				batch := logbuffer.Batch{Source: "s"}
				for i := from; i < min(from+100, b.N); i++ {
					batch.Tuples = append(batch.Tuples, logbuffer.Tuple{Key: fmt.Appendf(nil, "k%d", i%1000), Value: value})
				}
				log.Feed(batch)
			}
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			b.ResetTimer()
			go func() { ended <- sink.Run(ctx, out) }()
			if err := out.WaitAcked(ctx, uint64(b.N)); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tuples/s")
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkSource measures tuples of 100 bytes taken in as NDJSON, 1000 a request.
func BenchmarkSource(b *testing.B) {
	source, err := httpio.NewSource(httpio.SourceConfig{
		Name: "orders", Listen: ":0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	body := strings.Repeat(`"`+strings.Repeat("x", 97)+"\"\n", 1000)
	b.SetBytes(int64(len(body)))
	log := proxytest.NewLog("lin")
	for b.Loop() {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-ndjson")
		w := httptest.NewRecorder()
		source.Handler(log).ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}
