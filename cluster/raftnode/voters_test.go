package raftnode

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// parse reads members: "A*" leads, "V" votes, "N" does not; "-" it is silent, "+" it is gone, "?" it is not yet stable.
func prospects(text string) (self string, members map[string]Prospect) {
	members = map[string]Prospect{}
	for i, word := range strings.Fields(text) {
		id := fmt.Sprint("n", i)
		p := Prospect{Votes: word[0] == 'V', Answers: true, Stable: true}
		switch word[1:] {
		case "*":
			self = id
		case "-":
			p.Answers, p.Stable = false, false
		case "+":
			p.Answers, p.Stable, p.Gone = false, false, true
		case "?":
			p.Stable = false
		}
		members[id] = p
	}
	return self, members
}

func voting(wanted map[string]bool) string {
	var ids []string
	for id, votes := range wanted {
		if votes {
			ids = append(ids, strings.TrimPrefix(id, "n"))
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

func TestVotes(t *testing.T) {
	for _, x := range []struct{ members, want, why string }{
		{"V*", "0", "alone"},
		{"V* N", "0", "two nodes: one of them votes, for two voters stop when either dies"},
		{"V* N N", "0 1 2", "three nodes"},
		{"V* N N?", "0", "two voters are worse than one"},
		{"V* N N+ N", "0 1 3", "one that is gone gets no vote"},
		{"V* N N N", "0 1 2", "four nodes"},
		{"V* V V N N", "0 1 2 3 4", "five nodes"},
		{"V* V V N N?", "0 1 2", "five nodes, of which one has just come"},
		{"V* V V N N+", "0 1 2", "five nodes, of which four can be counted on"},
		{"V* V V N N N N", "0 1 2 3 4", "seven nodes"},
		{"V V* V- N", "0 1 2", "silent, but for a moment"},
		{"V V* V+ N", "0 1 3", "gone, and another one takes its place"},
		{"V V* V+ N?", "0 1 2", "gone, and nobody can take its place"},
		{"V V* V+", "0 1 2", "each change stays on two disks"},
		{"V V* V V V+ N", "0 1 2 3 5", "gone, and another one takes its place, of five"},
		{"V V* V V V+", "0 1 2 3", "the one that is gone goes first"},
		{"V V* V V N+", "0 1 2", "then there is one too many"},
		{"V V* V V+ V+", "0 1 2", "three of five are left"},
		{"V V* V V+ V+ N N", "0 1 2 5 6", "two take the place of two"},
		{"V V*", "1", "the third one was removed"},
		{"V V* N", "0 1 2", "on the way from one to three"},
		{"V V* N?", "1", "back, when the third one is not stable after all"},
		{"V- V* V+ N", "0 1 2", "no majority: nothing can be done"},
		{"N* N N", "0 1 2", "a leader keeps its vote"},
	} {
		self, members := prospects(x.members)
		if got := voting(Votes(self, members)); got != x.want {
			t.Errorf("%s (%s): %s vote, want %s", x.members, x.why, got, x.want)
		}
	}
}

// TestVotesSettle: whatever happens to nodes, each step leaves a majority that answers, no vote is given and taken in
// turn, and the number that is left is odd.
func TestVotesSettle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 20_000 {
		n := 1 + random.IntN(8)
		members := map[string]Prospect{"n0": {Votes: true, Answers: true, Stable: true}}
		for i := 1; i < n; i++ {
			p := Prospect{Votes: random.IntN(2) == 0, Answers: random.IntN(4) > 0}
			p.Stable = p.Answers && random.IntN(3) > 0
			p.Gone = !p.Answers && random.IntN(2) == 0
			members[fmt.Sprint("n", i)] = p
		}
		begin := fmt.Sprint(members)
		had := majority(members)
		for step := 0; ; step++ {
			wanted := Votes("n0", members)
			if !wanted["n0"] {
				t.Fatalf("round %d: %s: the leader loses its vote", round, begin)
			}
			next := oneStep(members, wanted)
			if next == nil {
				break
			}
			if had && !majority(next) {
				t.Fatalf("round %d: %s: no majority answers in %v", round, begin, next)
			}
			members = next
			if step > 16 {
				t.Fatalf("round %d: %s: it does not settle", round, begin)
			}
		}
		votes := 0
		for _, p := range members {
			votes += number(p.Votes)
		}
		if had && votes%2 == 0 && votes > 0 && !stuck(members) {
			t.Fatalf("round %d: %s: %d voters are left: %v", round, begin, votes, members)
		}
	}
}

// stuck reports whether taking a vote would leave no majority.
func stuck(members map[string]Prospect) bool {
	silent := 0
	for _, p := range members {
		silent += number(p.Votes && !p.Answers)
	}
	return silent > 0
}

func majority(members map[string]Prospect) bool {
	votes, answer := 0, 0
	for _, p := range members {
		votes += number(p.Votes)
		answer += number(p.Votes && p.Answers)
	}
	return 2*answer > votes
}

// oneStep makes the change that SetMembers would make next; nil: there is none.
func oneStep(members map[string]Prospect, wanted map[string]bool) map[string]Prospect {
	for _, give := range []bool{true, false} {
		for id, p := range members {
			if wanted[id] == give && p.Votes != give {
				next := maps.Clone(members)
				p.Votes = give
				next[id] = p
				return next
			}
		}
	}
	return nil
}
