package replica

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// Stories are text files: a line that begins with "> " is a command, the lines after it are what it must print, and
// lines that are empty or begin with # are for the reader. Run with -rewrite to accept what is printed, and read the
// difference. The commands:
//
//	settings in=READER,… out=READER,… verdicts=N letters=N ids=N age=MS sessions=N sources=N members=ID,… voters=ID,…
//	(a READER is name:sink:…)
//	open PROPOSER [replaces=N] [nonce=N] [term=N]
//	append PROPOSER NUMBER SOURCE RULE POSITION… [ids=ID,…] [sink=S] [after=N]
//	ack|commit PROPOSER NUMBER READER UPTO [dead=N,…] [dropped=N] [out=SINK,…]
//	requeue|drop PROPOSER NUMBER OFFSET, session PROPOSER NUMBER NONCE, tick PROPOSER NUMBER
//	hash PROPOSER NUMBER SERVER INDEX HASH, announce PROPOSER NUMBER SERVER VERSION
//	propose NAME COMMAND…     makes an entry and keeps it back; apply NAME applies it; lose NAME forgets it
//	time +MS, term N, seal, crash
//	read BUFFER READER, letters, ledger, position SOURCE, proposer NAME, verdict NAME INCARNATION NUMBER, cursors BUFFER,
//	judged, versions
//
// Every command that a proposer numbers takes inc=N; the default is its present incarnation.

//nolint:gochecknoglobals // a flag of the test binary
var rewriteStories = flag.Bool("rewrite", false, "accept what the stories print")

func TestStories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/stories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			want, got := tell(t, file, mutant{})
			if *rewriteStories {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("%s", firstDifference(want, got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d is\n\t%s\nwant\n\t%s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// tell runs a story with protections switched off by m and returns it as it stands and as it went.
func tell(t *testing.T, file string, m mutant) (want, got string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, rig: newStateRig(t, 400, 400), kept: map[string]command{}}
	s.rig.s.mutant = m
	if m.admitAll {
		s.staged = dedup.NewTable(dedup.DefaultBounds())
	}
	var out []string
	for line := range strings.SplitSeq(string(data), "\n") {
		switch words, isCommand := strings.CutPrefix(line, "> "); {
		case isCommand:
			out = append(out, line)
			out = append(out, s.command(strings.Fields(words))...)
			s.rig.s.mutant = m
		case line == "" || strings.HasPrefix(line, "#"):
			out = append(out, line)
		}
	}
	return string(data), strings.Join(out, "\n")
}

// story is a running story.
type story struct {
	t      *testing.T
	rig    *stateRig
	kept   map[string]command
	tenure uint64
	// staged is what a leader that deduplicates before it proposes has in its memory.
	staged *dedup.Table
}

func (s *story) command(words []string) []string {
	switch words[0] {
	case "propose":
		s.kept[words[1]] = s.make(words[2:])
		return nil
	case "lose":
		delete(s.kept, words[1])
		return nil
	case "apply":
		return []string{sayVerdict(s.rig.one(s.kept[words[1]]))}
	case "settings":
		return s.settings(args(words[1:]))
	case "time":
		s.rig.now += int64(number(words[1]))
		return nil
	case "term":
		s.rig.term = number(words[1])
		return nil
	case "seal":
		s.rig.seal()
		return nil
	case "crash":
		s.rig.crash()
		return nil
	}
	if lines, ok := s.look(words); ok {
		return lines
	}
	return []string{sayVerdict(s.rig.one(s.make(words)))}
}

func (s *story) look(words []string) (lines []string, ok bool) {
	st := s.rig.s
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch words[0] {
	case "read":
		c, _ := st.buffer(words[1]).Reader(words[2])
		for _, t := range s.rig.read(words[1], words[2], c.Acked) {
			say("%d %s", t.Offset, t.Tuple.Value)
		}
	case "letters":
		for _, l := range st.Letters(0, 100) {
			say("%d of %s: %s from %d, %d attempts: %s", l.Offset, l.Reader, l.Tuple.Value, l.From, l.Attempts, l.Reason)
		}
	case "ledger":
		for _, l := range st.Ledgers() {
			say("%s/%s: received %d = delivered %d + deduplicated %d + dead-lettered %d + dropped %d + retained %d",
				l.Buffer, l.Reader, l.Received, l.Delivered, l.Deduplicated, l.DeadLettered, l.Dropped, l.Retained)
		}
	case "position":
		last, known := st.Position(words[1])
		say("%d %v", last, known)
	case "proposer":
		p, known := st.Proposer(words[1])
		say("incarnation %d last %d %v", p.Incarnation, p.Last, known)
	case "verdict":
		say("%s", sayVerdict(st.Verdict(words[1], number(words[2]), number(words[3]))))
	case "cursors":
		c := st.Cursors(words[1])
		say("trimmed %d end %d unread %d", c.Trimmed, c.End, c.Unread)
	case "judged":
		servers, reason := st.Judged()
		say("%v %s", servers, reason)
	case "versions":
		say("%v", st.Versions())
	default:
		return nil, false
	}
	return lines, true
}

func (s *story) settings(a map[string]string) []string {
	if s.tenure == 0 {
		s.rig.one(command{Kind: kindOpen, Proposer: tenureProposer, Body: appendOpenBody(nil, 0, rigNonce(1<<40))})
	}
	s.tenure++
	set := s.rig.s.Settings()
	for name, value := range a {
		switch name {
		case "in":
			set.In = storyReaders(value)
		case "out":
			set.Out = storyReaders(value)
		case "members":
			set.Members = list(value)
		case "voters":
			set.Voters = list(value)
		default:
			field := map[string]*int{
				"verdicts": &set.Verdicts, "letters": &set.Letters, "ids": &set.Dedup.IDs, "sessions": &set.Dedup.Sessions,
				"sources": &set.Dedup.Sources,
			}[name]
			if name == "age" {
				set.Dedup.IDAge, set.Dedup.SessionAge = int64(number(value)), int64(number(value))
			} else {
				*field = int(number(value))
			}
		}
	}
	p, _ := s.rig.s.Proposer(tenureProposer)
	return []string{sayVerdict(s.rig.one(command{
		Kind: kindSettings, Proposer: tenureProposer, Incarnation: p.Incarnation, Number: s.tenure, Body: set.appendTo(nil),
	}))}
}

func storyReaders(value string) []logbuffer.Reader {
	var readers []logbuffer.Reader
	for _, r := range list(value) {
		parts := strings.Split(r, ":")
		readers = append(readers, logbuffer.Reader{Name: parts[0], Sinks: parts[1:]})
	}
	return readers
}

// make makes the command that words describe.
func (s *story) make(words []string) command {
	s.t.Helper()
	a := args(words)
	words = slices.DeleteFunc(words, func(w string) bool { return strings.Contains(w, "=") })
	p, _ := s.rig.s.Proposer(words[1])
	c := command{Proposer: words[1], Incarnation: p.Incarnation}
	if v, ok := a["inc"]; ok {
		c.Incarnation = number(v)
	}
	if words[0] == "open" {
		c.Kind = kindOpen
		if v, ok := a["replaces"]; ok {
			c.Incarnation = number(v)
		}
		c.Body = appendOpenBody(nil, number(a["term"]), rigNonce(number(a["nonce"])))
		return c
	}
	c.Number = number(words[2])
	c.Kind, c.Body = s.body(words[0], words[3:], a)
	return c
}

func (s *story) body(name string, words []string, a map[string]string) (kind, []byte) {
	s.t.Helper()
	get := must[[]byte](s.t)
	switch name {
	case "append":
		return kindAppend, get(appendAppendBody(nil, s.stage(storyBatch(words, a))))
	case "ack":
		return kindAck, appendAckBody(nil, s.ack(words, a))
	case "commit":
		var outputs []logbuffer.Batch
		for i, sink := range list(a["out"]) {
			b := rigBatch("operator", logbuffer.RuleNone, int64(i))
			b.Sink = sink
			outputs = append(outputs, b)
		}
		return kindCommit, get(appendCommitBody(nil, s.ack(words, a), outputs))
	case "requeue":
		return kindRequeue, appendOffsetBody(nil, number(words[0]))
	case "drop":
		return kindDrop, appendOffsetBody(nil, number(words[0]))
	case "session":
		return kindOpenSession, appendOpenSessionBody(nil, rigNonce(number(words[0])))
	case "tick":
		return kindTick, nil
	case "hash":
		return kindHash, appendHashBody(nil, words[0], number(words[1]), number(words[2]))
	case "announce":
		return kindAnnounce, appendAnnounceBody(nil, words[0], int(number(words[1])))
	}
	s.t.Fatalf("unknown command %q", name)
	return 0, nil
}

func storyBatch(words []string, a map[string]string) logbuffer.Batch {
	rule := map[string]logbuffer.Rule{
		"none": logbuffer.RuleNone, "sparse": logbuffer.RuleSparse, "dense": logbuffer.RuleDense,
		"session": logbuffer.RuleSession, "range": logbuffer.RuleRange,
	}[words[1]]
	var at []int64
	for _, w := range words[2:] {
		at = append(at, int64(number(w)))
	}
	b := rigBatch(words[0], rule, at...)
	b.Sink, b.After = a["sink"], int64(number(a["after"]))
	for _, id := range list(a["ids"]) {
		var full logbuffer.ID
		copy(full[:], id)
		b.IDs = append(b.IDs, full)
	}
	return b
}

// stage drops what a leader that deduplicates before it proposes takes for duplicates.
func (s *story) stage(b logbuffer.Batch) []logbuffer.Batch {
	if s.staged == nil {
		return []logbuffer.Batch{b}
	}
	var at []int64
	for _, t := range b.Tuples {
		at = append(at, t.Position)
	}
	o := s.staged.Judge(dedup.Batch{
		Source: b.Source, Rule: dedup.Rule(b.Rule), After: b.After, First: at[0], Last: at[len(at)-1], Count: len(at),
		Positions: func() []int64 { return at },
	}, s.rig.now)
	if o.Duplicates == len(at) {
		return nil
	}
	return []logbuffer.Batch{b}
}

func (s *story) ack(words []string, a map[string]string) logbuffer.Ack {
	ack := logbuffer.Ack{Reader: words[0], UpTo: number(words[1]), Dropped: int(number(a["dropped"]))}
	_, buffer, _ := s.rig.s.readerCalled(ack.Reader)
	for _, from := range list(a["dead"]) {
		l := logbuffer.Letter{From: number(from), Reason: "refused", Attempts: 1}
		if l.From > s.rig.s.Cursors(buffer).Trimmed { // else the story says something that cannot be
			for _, t := range s.rig.read(buffer, ack.Reader, l.From-1) {
				if t.Offset == l.From {
					l.Source, l.Sink, l.Tuple = t.Source, t.Sink, t.Tuple
				}
			}
		}
		ack.Dead = append(ack.Dead, l)
	}
	return ack
}

func args(words []string) map[string]string {
	a := map[string]string{}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			a[name] = value
		}
	}
	return a
}

func list(value string) []string {
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

func number(word string) uint64 {
	n, err := strconv.ParseUint(strings.TrimPrefix(word, "+"), 0, 64)
	if err != nil && word != "" {
		panic(err)
	}
	return n
}

func sayVerdict(v Verdict) string {
	var b strings.Builder
	b.WriteString([]string{"done", "gap", "fenced", "forgotten", "refused"}[v.Code])
	if v.Expected > 0 {
		fmt.Fprintf(&b, " expected=%d", v.Expected)
	}
	if v.Incarnation > 0 {
		fmt.Fprintf(&b, " incarnation=%d", v.Incarnation)
	}
	if v.Offset > 0 {
		fmt.Fprintf(&b, " offset=%d", v.Offset)
	}
	if v.SessionID != "" {
		fmt.Fprintf(&b, " session=%s", v.SessionID)
	}
	if v.Reason != "" {
		fmt.Fprintf(&b, ": %s", v.Reason)
	}
	for _, r := range v.Receipts {
		switch r.Code {
		case logbuffer.CodeDone:
			fmt.Fprintf(&b, " [%d-%d new=%d dup=%d]", r.First, r.Last, r.Admitted, r.Duplicates)
		case logbuffer.CodeGap:
			fmt.Fprintf(&b, " [gap expected=%d]", r.Expected)
		case logbuffer.CodeExpired:
			b.WriteString(" [expired]")
		case logbuffer.CodeFull:
			b.WriteString(" [full]")
		}
	}
	return b.String()
}
