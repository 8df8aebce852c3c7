package object

import "fmt"

// Counted is a number of things, in words for people: "1 object", "2 objects". The plural has an s.
func Counted[N int | uint16 | uint32 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
