// Program wiregen writes the codecs of a protocol's package from its structs: the file codec.go with Append and Decode
// of every message, and the layout on the line of each message's number. It runs in the package's folder (go generate).
//
// The description of a message is its struct: fields in the order of the wire, each as its Go type says. A comment line
// says what the struct is:
//
//	//wire:record           a message that has a constant Type… for its number
//	//wire:payload          a message
//	//wire:payload A B re C a message: the requests A and B, the reply to C
//	//wire:part             a part of others
//
// A line before a struct's fields is not enough for some; these have a tag wire:"…" of words:
//
//	bits      a flag; flags behind each other share one byte, the first has the lowest bit
//	u32       of a bool: it takes four bytes
//	u8, u32   of a list: so wide is its count, where it is not a u16
//	max=N     of a list: more elements are refused
//	cut=N     of a text: it is sent without what is beyond
//	len=F     of an array: so many of its elements travel as the field F says
//	rest      of bytes: all that is left; of an array with len: the others are what rest=N says, or zero
//	if=F      it is there where the field F, a bool, is set
//	unless=F  it is there where F is not set
//
// A method check(*field.Reader) of a struct is called at the end of its decoding.
package main

import (
	"flag"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	var how style
	how.flags(flag.CommandLine)
	flag.Parse()
	files, err := generate(".", how)
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// style is what differs from package to package.
type style struct {
	fault   string // the sentinel that decoding errors wrap, as Go
	numbers string // the file that holds the numbers
}

func (s *style) flags(f *flag.FlagSet) {
	f.StringVar(&s.fault, "fault", "ErrRecord", "the error that a decoder's faults wrap")
	f.StringVar(&s.numbers, "numbers", "", "the file with the messages' numbers")
}
