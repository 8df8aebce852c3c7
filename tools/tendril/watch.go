package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
)

func (c *cli) watchVerb() *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Print what happens to your objects, a line an event, until interrupted",
		Long: "Prints what happens to your objects, a line an event, until interrupted. It goes on when the daemon is restarted or handed over: it says so, once, on\n" +
			"standard error, waits for the next daemon, and prints a line \"lost\", for what happened meanwhile is not told.\n\n" +
			"Events: sealed, named, unnamed (the object has that name no more: it was renamed, another took its name, or it was deleted and a composite has it),\n" +
			"gone (an object's last), spilled, restored.",
		Example: "  tendril watch\n  tendril watch frame- --json\n  tendril watch result -n 1       # until something happens to it",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) == 1 {
				prefix = args[0]
			}
			probe, err := c.dial() // for its errors, which say what to do
			if err != nil {
				return err
			}
			probe.Close()
			seen, away, enough := 0, false, errors.New("enough")
			err = client.Watch(cmd.Context(), client.Options{Socket: c.socketPath()}, prefix, nil, func(ev client.Event) error {
				switch ev.Kind {
				case client.EventDisconnected:
					away = true
					fmt.Fprintln(c.term.err, "The daemon is gone: waiting for the next one.")
					return nil
				case client.EventLost:
					if away {
						fmt.Fprintln(c.term.err, "Connected again. What happened meanwhile is missing: tendril ls says what is there now.")
					}
					away = false
				}
				if err := c.printEvent(ev); err != nil {
					return err
				}
				if seen++; seen == count {
					return enough
				}
				return nil
			})
			if errors.Is(err, enough) {
				return nil
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&count, "number", "n", 0, "end after so many (0: never)")
	return c.jsonFlag(cmd)
}

func (c *cli) printEvent(ev client.Event) error {
	if c.json {
		return json.NewEncoder(c.term.out).Encode(ev) // a line each
	}
	_, err := fmt.Fprintf(c.term.out, "%s  %-8s  %s  %s  %s\n", ev.At.Local().Format(time.TimeOnly), ev.Kind, ev.ID, size(ev.SizeBytes), orDash(plain(ev.Name)))
	return err
}
