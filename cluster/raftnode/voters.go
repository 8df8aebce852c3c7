package raftnode

import (
	"slices"
	"strings"
)

// Who votes. Three nodes of a cluster vote, or five where five can be counted on; the others follow. hashicorp's
// raft-autopilot is not used: docs/DEPENDENCIES.md says why.

// Prospect is what the leader knows of one member.
type Prospect struct {
	Votes   bool // now
	Answers bool // now, and can write its log
	Stable  bool // it has answered for long enough, and its log is hardly behind the leader's
	Gone    bool // it has been silent for so long that it is not counted on
}

// Numbers of voters.
const (
	someVoters = 3
	manyVoters = 5
)

// Votes says who of the members is to vote, as the leader self sees them. The number is odd, but for moments. Who votes
// goes on voting, unless it is gone and another one takes its place, or there are too many: those that are gone go
// first. While there are three members or more no death brings the number below three: each change would lie on fewer
// disks. What would leave the voters without a majority that answers is not done.
func Votes(self string, members map[string]Prospect) map[string]bool {
	var voters, fresh, gone []string // that can be counted on, in the order in which they keep their votes; others
	present := map[string]bool{}
	there := 0
	for id, p := range members {
		present[id] = p.Votes || id == self
		switch {
		case id == self || p.Votes && !p.Gone:
			voters = append(voters, id)
		case p.Votes:
			gone = append(gone, id)
		case p.Stable && !p.Gone:
			fresh = append(fresh, id)
		}
		if id == self || !p.Gone {
			there++
		}
	}
	rank := func(id string) int {
		switch {
		case id == self:
			return 0
		case members[id].Answers:
			return 1
		}
		return 2
	}
	for _, list := range [][]string{voters, fresh, gone} {
		slices.SortFunc(list, func(a, b string) int {
			if d := rank(a) - rank(b); d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
	}
	chosen := choose(voters, fresh, gone, wantedVoters(len(members), there))
	wanted := map[string]bool{}
	for id := range members {
		wanted[id] = slices.Contains(chosen, id)
	}
	oneKindOfLoss(wanted, voters, gone)
	if !safe(wanted, members, self) {
		return present
	}
	return wanted
}

// wantedVoters is how many members are to vote.
func wantedVoters(members, there int) int {
	switch {
	case there >= manyVoters:
		return manyVoters
	case members >= someVoters:
		return someVoters
	}
	return 1
}

// choose takes an odd number of members, most at most.
func choose(voters, fresh, gone []string, most int) []string {
	chosen := slices.Clone(voters[:min(len(voters), most)])
	added := min(len(fresh), most-len(chosen))
	chosen = append(chosen, fresh[:added]...)
	for len(chosen) < min(most, someVoters) && len(gone) > 0 {
		chosen, gone = append(chosen, gone[0]), gone[1:]
	}
	if len(chosen)%2 == 1 {
		return chosen
	}
	if added == 0 && len(gone) > 0 {
		return append(chosen, gone[0])
	}
	return chosen[:len(chosen)-1]
}

// oneKindOfLoss has voters that can be counted on keep their votes as long as there are others to lose theirs: votes
// are taken one by one, and in between a majority has to answer, too.
func oneKindOfLoss(wanted map[string]bool, voters, gone []string) {
	for _, id := range gone {
		if !wanted[id] {
			for _, id := range voters {
				wanted[id] = true
			}
			return
		}
	}
}

// safe reports whether a majority of the voters answers, after the change and on the way there, when all who are to
// vote do and nobody has lost the vote yet.
func safe(wanted map[string]bool, members map[string]Prospect, self string) bool {
	var after, afterAnswer, all, allAnswer int
	for id, p := range members {
		answers := p.Answers || id == self
		if wanted[id] {
			after++
			afterAnswer += number(answers)
		}
		if wanted[id] || p.Votes || id == self {
			all++
			allAnswer += number(answers)
		}
	}
	return 2*afterAnswer > after && 2*allAnswer > all
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
