package placement

import "testing"

func TestCount(t *testing.T) {
	a, b, c := ID{1}, ID{2}, ID{3}
	for name, x := range map[string]struct {
		count   Count
		missing int
		surplus ID
	}{
		"nothing wanted":           {Count{Have: []ID{a, b}}, 0, ID{}},
		"as wanted":                {Count{Wanted: 2, Have: []ID{a, b}}, 0, ID{}},
		"one to come":              {Count{Wanted: 3, Have: []ID{a, b}}, 1, ID{}},
		"one on its way":           {Count{Wanted: 3, Have: []ID{a, b}, Pending: []ID{c}}, 0, ID{}},
		"one silent for a moment":  {Count{Wanted: 2, Have: []ID{a, b}, Silent: []ID{b}}, 0, ID{}},
		"one gone":                 {Count{Wanted: 2, Have: []ID{a, b}, Gone: []ID{b}}, 1, ID{}},
		"one gone, and made anew":  {Count{Wanted: 2, Have: []ID{a, b, c}, Gone: []ID{b}}, 0, ID{}},
		"one back: the newest":     {Count{Wanted: 2, Have: []ID{a, b, c}}, 0, c},
		"too many, but one silent": {Count{Wanted: 2, Have: []ID{a, b, c}, Silent: []ID{a}}, 0, ID{}},
		"too many, and a silent":   {Count{Wanted: 1, Have: []ID{a, b, c}, Silent: []ID{c}}, 0, b},
		"too many, one to come":    {Count{Wanted: 1, Have: []ID{a, b}, Pending: []ID{c}}, 0, ID{}},
	} {
		id, some := x.count.Surplus()
		if missing := x.count.Missing(); missing != x.missing || id != x.surplus || some != (x.surplus != ID{}) {
			t.Errorf("%s: %d missing, surplus %v: want %d, %v", name, missing, id, x.missing, x.surplus)
		}
	}
}
