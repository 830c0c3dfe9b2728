package tcpio_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"ftproxy/proxy/proxytest"
	"ftproxy/proxy/tcpio"
)

// Each protection has a check that says what is wrong. With the protection it says nothing; without it, something.

func sourceProtection(t *testing.T, check func(*testing.T, ...func(*tcpio.Source)) error, mutant func(*tcpio.Source)) {
	t.Helper()
	if err := check(t); err != nil {
		t.Error(err)
	}
	if err := check(t, mutant); err == nil {
		t.Error("without the protection the check finds nothing")
	}
}

func sinkProtection(t *testing.T, check func(*testing.T, ...func(*tcpio.Sink)) error, mutant func(*tcpio.Sink)) {
	t.Helper()
	if err := check(t); err != nil {
		t.Error(err)
	}
	if err := check(t, mutant); err == nil {
		t.Error("without the protection the check finds nothing")
	}
}

func TestMutantTakesCutLines(t *testing.T) {
	sourceProtection(t, func(t *testing.T, mutate ...func(*tcpio.Source)) error {
		t.Helper()
		log := proxytest.NewLog("l")
		_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesAck}, log, mutate...)
		p := dial(t, addr)
		p.send("whole\nhal")
		p.want("ok 1")
		p.closeWrite()
		if _, err := io.ReadAll(p); err != nil {
			t.Fatal(err)
		}
		if got := values(log); got != "whole" {
			return fmt.Errorf("admitted %q", got)
		}
		return nil
	}, (*tcpio.Source).TakeCutLines)
}

// TestMutantWithoutSlots: memory is for one large tuple at a time, so that the second waits for the first.
func TestMutantWithoutSlots(t *testing.T) {
	sourceProtection(t, func(t *testing.T, mutate ...func(*tcpio.Source)) error {
		t.Helper()
		log := proxytest.NewLog("l")
		_, addr, _ := listening(t, tcpio.SourceConfig{
			Framing: tcpio.Frames, Replies: tcpio.RepliesAck, MaxTupleBytes: 1 << 20, MaxMemory: 1 << 20,
		}, log, mutate...)
		large := func() (p *peer, header string) {
			return dial(t, addr), string(binary.BigEndian.AppendUint32(nil, 200_000))
		}
		first, header := large()
		first.send(header + strings.Repeat("x", 100_000))
		second, header := large()
		if _, err := io.WriteString(second.Conn, header+strings.Repeat("y", 200_000)); err != nil {
			t.Fatal(err)
		}
		if err := second.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := second.ReadByte(); err == nil {
			return errors.New("two large tuples were in memory at once")
		}
		first.send(strings.Repeat("x", 100_000))
		_ = second.SetReadDeadline(time.Now().Add(patience))
		if _, err := second.ReadByte(); err != nil {
			t.Errorf("the second was not served after the first: %v", err)
		}
		return nil
	}, (*tcpio.Source).NoSlots)
}

// TestMutantUnnumbered: a client that sends again what it was not answered must not be taken twice.
func TestMutantUnnumbered(t *testing.T) {
	sourceProtection(t, func(t *testing.T, mutate ...func(*tcpio.Source)) error {
		t.Helper()
		log := proxytest.NewLog("l")
		log.FailAppend(proxytest.FaultUnknownWritten)
		_, addr, _ := listening(t, tcpio.SourceConfig{Replies: tcpio.RepliesSession}, log, mutate...)
		p := dial(t, addr)
		p.send("session\n")
		var id string
		var next int
		if _, err := fmt.Fscanf(p.Reader, "session %s %d\n", &id, &next); err != nil {
			t.Fatal(err)
		}
		tuples := []string{"a\n", "b\n"}
		p.send(tuples[0])
		p.wantError("")
		p = dial(t, addr)
		p.send("session " + id + "\n")
		if _, err := fmt.Fscanf(p.Reader, "session %s %d\n", &id, &next); err != nil {
			t.Fatal(err)
		}
		p.send(strings.Join(tuples[next-1:], ""))
		proxytest.Until(t, patience, "b", func() bool { return strings.HasSuffix(values(log), "b") })
		if got := values(log); got != "a|b" {
			return fmt.Errorf("admitted %q", got)
		}
		return nil
	}, (*tcpio.Source).Unnumbered)
}

// TestMutantAcksAfterWrite: without replies nothing may come twice, so the cursor moves before the bytes do.
func TestMutantAcksAfterWrite(t *testing.T) {
	sinkProtection(t, func(t *testing.T, mutate ...func(*tcpio.Sink)) error {
		t.Helper()
		log, r := proxytest.NewLog("l"), newReceiver(t)
		out := log.Outlet("lines")
		out.FailAck(proxytest.FaultUnavailable) // the tenure ends at this point
		feed(log, "a")
		_, stop := delivering(t, tcpio.SinkConfig{}, r.Addr().String(), out, mutate...)
		if got, _ := r.accept().ReadString('\n'); got != "" { // until the run ends, which closes the connection
			return fmt.Errorf("%q was sent before it was acknowledged, and will be again", got)
		}
		_ = stop()
		delivering(t, tcpio.SinkConfig{}, r.Addr().String(), out) // the next leader
		r.accept().want("a")
		return nil
	}, (*tcpio.Sink).AckAfterWrite)
}

func TestMutantBlamesIdleConnections(t *testing.T) {
	sinkProtection(t, func(t *testing.T, mutate ...func(*tcpio.Sink)) error {
		t.Helper()
		log, r := proxytest.NewLog("l"), newReceiver(t)
		out := log.Outlet("lines")
		feed(log, "a")
		config := tcpio.SinkConfig{Replies: tcpio.RepliesAck, MaxAttempts: 1}
		delivering(t, config, r.Addr().String(), out, mutate...)
		p := r.accept()
		p.want("a")
		p.send("ok\n")
		wantAcked(t, out, 1)
		_ = p.Close()
		feed(log, "b")
		proxytest.Until(t, patience, "a verdict or another connection", func() bool {
			_ = r.SetDeadline(time.Now().Add(20 * time.Millisecond))
			conn, err := r.Accept()
			if err == nil {
				p = newPeer(t, conn)
				p.want("b")
				p.send("ok\n")
			}
			return out.Acked() == 2
		})
		if n := len(out.Letters()); n > 0 {
			return fmt.Errorf("%d dead letters of tuples that were never refused", n)
		}
		return nil
	}, (*tcpio.Sink).BlameIdle)
}

// TestMutantKeepsWindow: only a tuple on its own gets a verdict, so after a failure nothing is sent behind it.
func TestMutantKeepsWindow(t *testing.T) {
	sinkProtection(t, func(t *testing.T, mutate ...func(*tcpio.Sink)) error {
		t.Helper()
		log, r := proxytest.NewLog("l"), newReceiver(t)
		out := log.Outlet("lines")
		feed(log, "a", "b")
		delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck}, r.Addr().String(), out, mutate...)
		_ = r.accept().Close() // without a reply
		p := r.accept()
		p.want("a")
		_ = p.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if got, err := p.ReadString('\n'); err == nil {
			return fmt.Errorf("%q was sent behind a tuple that had failed", got)
		}
		return nil
	}, (*tcpio.Sink).KeepWindow)
}

func TestMutantAcksUnreplied(t *testing.T) {
	sinkProtection(t, func(t *testing.T, mutate ...func(*tcpio.Sink)) error {
		t.Helper()
		log, r := proxytest.NewLog("l"), newReceiver(t)
		out := log.Outlet("lines")
		feed(log, "a")
		delivering(t, tcpio.SinkConfig{Replies: tcpio.RepliesAck}, r.Addr().String(), out, mutate...)
		first := r.accept()
		first.want("a")
		_ = first.Close() // the receiver dies with it
		_ = r.SetDeadline(time.Now().Add(time.Second))
		conn, err := r.Accept()
		if err != nil {
			return fmt.Errorf("the tuple was lost: acknowledged up to %d", out.Acked())
		}
		newPeer(t, conn).want("a")
		return nil
	}, (*tcpio.Sink).AckUnreplied)
}
