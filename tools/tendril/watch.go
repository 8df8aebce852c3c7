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
		Short: "Print events of your objects, one line each, until interrupted",
		Long: "Print events of your objects, one line each, until interrupted. If the daemon is restarted or replaced, the command says\n" +
			"so on standard error, waits for the next daemon, and prints \"lost\": what happened in between is not reported.\n\n" +
			"Events: sealed, named, unnamed (the object lost its name: it was renamed, another object took the name, or it was\n" +
			"deleted while it is part of another), gone (the last event of an object), spilled, restored; published and\n" +
			"unpublished, of the names that your tenant has in the cluster, at whichever node.",
		Example: "  tendril watch\n  tendril watch frame- --json\n  tendril watch result -n 1       # until something happens to it",
		GroupID: "store",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if count < 0 {
				return usagef("--number %d: want 0 or more", count)
			}
			prefix := ""
			if len(args) == 1 {
				prefix = args[0]
			}
			probe, err := c.dial(cmd.Context()) // for its errors, which say what to do
			if err != nil {
				return err
			}
			socket := probe.Socket()
			probe.Close()
			seen, away, enough := 0, false, errors.New("enough")
			err = client.Watch(cmd.Context(), client.Options{Socket: socket}, prefix, nil, func(ev client.Event) error {
				switch ev.Kind {
				case client.EventDisconnected:
					away = true
					fmt.Fprintln(c.term.err, "The daemon is gone. Waiting for the next one.")
					return nil
				case client.EventLost:
					if away {
						fmt.Fprintln(c.term.err,
							"Connected again. Events in between are missing: tendril ls lists what is there now.")
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
	cmd.Flags().IntVarP(&count, "number", "n", 0, "stop after this many events (0: never)")
	return c.jsonFlag(cmd)
}

func (c *cli) printEvent(ev client.Event) error {
	if c.json {
		return json.NewEncoder(c.term.out).Encode(ev) // a line each
	}
	_, err := fmt.Fprintf(c.term.out, "%s  %-11s  %s  %s  %s\n", ev.At.Local().Format(time.TimeOnly), ev.Kind, ev.ID,
		size(ev.SizeBytes), orDash(plain(ev.Name)))
	return err
}
