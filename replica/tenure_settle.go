package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"ftproxy/dedup"
	"ftproxy/logbuffer"
)

// errSettings is a configuration that the state refuses. It stays so until a human changes something.
var errSettings = errors.New("the settings cannot come into force")

// settle writes what every replica must agree on into the state, if it is not there yet, as far as the state can take
// it now. What is left waits for a later round.
func (t *Tenure) settle(ctx context.Context) error {
	want := t.n.config.settings()
	for _, m := range members(t.n.core) {
		want.Members = append(want.Members, m.ID)
		if m.Voter {
			want.Voters = append(want.Voters, m.ID)
		}
	}
	plan := t.n.planReaders()
	if len(plan.waits) > 0 { // what waited before ends with the settings in force, lest new tuples come first
		t.n.hold(ctx, &plan)
	}
	if len(plan.drops) > 0 {
		if err := t.drop(ctx, plan.drops); err != nil {
			return err
		}
		plan = t.n.planReaders()
	}
	want.In = plan.in
	if err := want.Check(); err != nil {
		return fmt.Errorf("%w: %w: %w", errSettings, ErrConfig, err)
	}
	if err := t.enforce(ctx, want); err != nil {
		if now := t.n.planReaders(); !errors.Is(err, errSettings) || slices.EqualFunc(now.in, want.In, sameReader) {
			return err
		}
		// Tuples came between the plan and the settings. Another plan is due.
	}
	plan = t.n.planReaders()
	t.n.hold(ctx, &plan)
	return nil
}

// enforce writes settings into the state, unless they are there.
func (t *Tenure) enforce(ctx context.Context, want Settings) error {
	body := want.appendTo(nil)
	var have []byte
	t.n.fsm.view(func(s *State) { have = s.Settings().appendTo(nil) })
	if slices.Equal(body, have) {
		return nil
	}
	v, err := t.lane.propose(ctx, kindSettings, body)
	switch {
	case err != nil:
		return fmt.Errorf("settings: %w", err)
	case v.Code == VerdictRefused:
		return fmt.Errorf("%w: %s", errSettings, v.Reason)
	}
	return nil
}

// drop gives up what is pending for readers that a human wants to be rid of. Nothing is taken in meanwhile, so that
// they have nothing pending when the settings without them arrive.
func (t *Tenure) drop(ctx context.Context, drops []logbuffer.Ack) error {
	for _, a := range drops {
		t.n.log.WarnContext(ctx, "dropping the tuples of a reader that is not configured any more, as configured",
			slog.String("reader", a.Reader), slog.Int("tuples", a.Dropped), slog.Uint64("up_to", a.UpTo))
		v, err := t.lane.propose(ctx, kindAck, appendAckBody(nil, a))
		if err == nil && v.Code != VerdictDone {
			err = errors.New(v.Reason)
		}
		if err != nil {
			return fmt.Errorf("drop the tuples of reader %q: %w", a.Reader, err)
		}
	}
	return nil
}

// readerPlan is how the configured readers of IN come into force: at once as far as nothing stands against it.
type readerPlan struct {
	// in is what can be in force now.
	in []logbuffer.Reader
	// left are readers that are not configured any more but have tuples pending, and are not to be dropped. They stay.
	left []logbuffer.ReaderCursor
	// drops are what makes readers disappear that are to be dropped.
	drops []logbuffer.Ack
	// waits says which changes wait, for what, and what can be done. While there are any, no tuples are taken in, so that
	// the buffer drains.
	waits []string
}

func (n *Node) planReaders() (p readerPlan) {
	n.fsm.view(func(s *State) {
		p = planReaders(s.Settings().In, s.Cursors(bufferIn), withSinks(n.config.Readers), n.config.DropReaders)
	})
	return p
}

// planReaders brings the wanted readers into force beside what the state has. A reader can change its sinks only while
// nothing is retained, one with tuples pending cannot go, and no sink belongs to two.
func planReaders(have []logbuffer.Reader, c logbuffer.Cursors, want []logbuffer.Reader, drop []string) readerPlan {
	if c.Trimmed == c.End {
		return readerPlan{in: want}
	}
	var p readerPlan
	p.in, p.waits = changed(have, want)
	for _, r := range have {
		i := slices.IndexFunc(c.Readers, func(at logbuffer.ReaderCursor) bool { return at.Name == r.Name })
		if i < 0 || c.Readers[i].PendingTuples == 0 || find(want, r.Name) >= 0 {
			continue
		}
		p.in = append(p.in, r)
		if slices.Contains(drop, r.Name) {
			p.drops = append(p.drops, logbuffer.Ack{
				Reader: r.Name, UpTo: c.End, Dropped: int(c.Readers[i].PendingTuples),
			})
			continue
		}
		p.left = append(p.left, c.Readers[i])
	}
	p.add(have, want)
	if len(p.waits) > 0 {
		p.waits = append(p.waits, p.cure(&c))
	}
	for _, a := range p.drops {
		p.waits = append(p.waits, fmt.Sprintf("what is retained for reader %q is being dropped", a.Reader))
	}
	return p
}

// changed returns the wanted readers that there are already, with the sinks that they have, and says which are to have
// others.
func changed(have, want []logbuffer.Reader) (in []logbuffer.Reader, waits []string) {
	for _, w := range want {
		i := find(have, w.Name)
		if i < 0 {
			continue
		}
		in = append(in, have[i])
		if !slices.Equal(have[i].Sinks, w.Sinks) {
			waits = append(waits, fmt.Sprintf("reader %q is to read the sinks %q instead of %q", w.Name, w.Sinks,
				have[i].Sinks))
		}
	}
	return in, waits
}

// add takes in the readers that are new, but for those with a sink that is another's as yet.
func (p *readerPlan) add(have, want []logbuffer.Reader) {
	taken := map[string]string{}
	for _, r := range p.in {
		for _, sink := range r.Sinks {
			taken[sink] = r.Name
		}
	}
	for _, w := range want {
		if find(have, w.Name) >= 0 {
			continue
		}
		i := slices.IndexFunc(w.Sinks, func(sink string) bool { return taken[sink] != "" })
		if i < 0 {
			p.in = append(p.in, w)
			continue
		}
		p.waits = append(p.waits, fmt.Sprintf("reader %q is to read the sink %q, which is reader %q's as yet", w.Name,
			w.Sinks[i], taken[w.Sinks[i]]))
	}
}

// cure says what changes of readers wait for, and what can be done.
func (p *readerPlan) cure(c *logbuffer.Cursors) string {
	var names []string
	for _, r := range c.Readers {
		if r.PendingTuples > 0 {
			names = append(names, fmt.Sprintf("%q", r.Name))
		}
	}
	text := []string{
		"no tuples are taken in until all that is retained is delivered, then the change comes into force",
		"to go on at once configure the sinks as before",
	}
	if len(names) > 0 {
		text = append(text, "tuples are pending for "+strings.Join(names, ", "))
	}
	for _, r := range p.left {
		text = append(text, fmt.Sprintf("nobody delivers for %q, which is not configured: %s", r.Name, leftCure))
	}
	if c.Unread > 0 {
		text = append(text, "tuples are retained for a sink that nobody reads: configure it under a name of its own")
	}
	return strings.Join(text, "; ")
}

// leftCure is what can be done about a reader that is not configured any more.
const leftCure = "configure it again until they are delivered, or name it among the readers to drop"

func sameReader(a, b logbuffer.Reader) bool {
	return a.Name == b.Name && slices.Equal(a.Sinks, b.Sinks)
}

func find(readers []logbuffer.Reader, name string) int {
	return slices.IndexFunc(readers, func(r logbuffer.Reader) bool { return r.Name == name })
}

// hold makes public what changes of readers wait for, which keeps tuples out, and tells of readers left behind.
func (n *Node) hold(ctx context.Context, p *readerPlan) {
	n.mu.Lock()
	before := n.waits
	n.waits = p.waits
	n.mu.Unlock()
	if !slices.Equal(before, p.waits) {
		n.turn.fire()
	}
	for _, text := range p.waits {
		n.once.warn(ctx, n.log, text, "a change of readers waits", slog.String("because", text))
	}
	for _, r := range p.left {
		n.once.warn(ctx, n.log, "left "+r.Name, "a reader that is not configured any more keeps tuples in the buffer: "+
			leftCure, slog.String("reader", r.Name), slog.Uint64("tuples", r.PendingTuples))
	}
}

// holding says why no tuples are taken in on this leader, empty if they are.
func (n *Node) holding() string {
	if n.config.hooks.unheld {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.waits, "; ")
}

// settings is what the configuration says that replicas must agree on.
func (c Config) settings() Settings {
	s := DefaultSettings()
	s.In = slices.Clone(c.Readers)
	s.Verdicts = window
	s.Letters = c.Limits.DeadLetters
	if c.hashEvery != 0 {
		s.HashEvery = c.hashEvery
	}
	s.Dedup = dedup.Bounds{
		IDs: c.Limits.IDs, IDAge: c.Limits.IDAge.Milliseconds(),
		Sessions: c.Limits.Sessions, SessionAge: c.Limits.SessionAge.Milliseconds(), Sources: s.Dedup.Sources,
	}
	return s
}
