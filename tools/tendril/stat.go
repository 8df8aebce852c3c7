package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/client/admin"
	"tendril/daemon"
	"tendril/store/object"
)

func (c *cli) statVerb() *cobra.Command {
	return c.jsonFlag(&cobra.Command{
		Use:     "stat NAME|ID",
		Short:   "Describe one object",
		Example: "  tendril stat photo.jpg\n  tendril stat 0123456789abcdef0123456789abcdef --json",
		GroupID: "store",
		Args:    cobra.ExactArgs(1),
		RunE: c.asking(func(ctx context.Context, conn *client.Conn, args []string) error {
			info, err := lookup(ctx, conn, args[0])
			if err != nil {
				return fmt.Errorf("stat %s: %w", args[0], err)
			}
			at, err := publicationOf(ctx, conn, info.ID)
			if err != nil {
				c.say("Whether it is published is not known: " + plain(err.Error()))
			}
			if err := c.printStat(info, at); err != nil || c.json || len(info.Members) == 0 {
				return firstError(err, at.silence())
			}
			fmt.Fprintln(c.term.out, "parts")
			return firstError(c.printTree(ctx, conn, info.Members, "  "), at.silence())
		}),
	})
}

// publication says how an object is published; nil: it is not.
type publication daemon.PublishedStatus

// publicationOf asks for the publication of an object. A node whose cluster is silent says what it knows, and of what
// it does not know that it may be there all the same.
func publicationOf(ctx context.Context, conn *client.Conn, id object.ID) (*publication, error) {
	return publicationBy(id, func() (json.RawMessage, error) { return admin.Of(conn).Place(ctx, id, "", "") },
		func(prefix string) iter.Seq2[daemon.PublishedStatus, error] {
			return decoded[daemon.PublishedStatus](conn.EachPublished(ctx, prefix), "published objects")
		})
}

// publicationTries bounds how often an object is looked for that has another name each time.
const publicationTries = 5

// publicationBy is publicationOf by what gives the name of id's publication, and the publications whose names begin
// with another, by name. Between the two it may get another name.
func publicationBy(id object.ID, place func() (json.RawMessage, error),
	list func(prefix string) iter.Seq2[daemon.PublishedStatus, error]) (*publication, error) {
	for range publicationTries {
		raw, err := place()
		switch {
		case errors.Is(err, object.ErrNotFound):
			if _, unsure, found := strings.Cut(err.Error(), " ("); found { // frontdoor.LessSure
				return nil, errors.New(strings.TrimSuffix(unsure, ")"))
			}
			return nil, nil
		case errors.Is(err, object.ErrUnsupported): // an older daemon
			return nil, nil
		case err != nil:
			return nil, err
		}
		var named struct{ Name string }
		if err := json.Unmarshal(raw, &named); err != nil {
			return nil, fmt.Errorf("the daemon's answer: %w", err)
		}
		for o, err := range list(named.Name) {
			if err != nil && !errors.Is(err, object.ErrTimeout) {
				return nil, err
			}
			if err == nil && o.ID == id {
				return (*publication)(&o), nil
			}
			if o.Name != named.Name { // the name itself comes first
				break
			}
		}
	}
	return nil, errors.New("it gets another name again and again: try again")
}

// String says as what an object is published, and where. A node that is listed may be silent, or have started anew.
func (p *publication) String() string {
	text := fmt.Sprintf("as %s, %d of %s", plain(p.Name), p.Have, object.Counted(p.Wanted, "replica"))
	nodes := plain(strings.Join(p.Nodes, ", "))
	if p.Have < len(p.Nodes) {
		return text + ", listed at " + nodes + ": not all of them have it just now"
	}
	return text + " at " + nodes
}

// silence is the error behind what a node says whose cluster does not answer, as ls --published has it.
func (p *publication) silence() error {
	if p == nil || p.Unsure == "" {
		return nil
	}
	return fmt.Errorf("%w: what is said of the publication may be old: %s", object.ErrTimeout, p.Unsure)
}

func (c *cli) printStat(o object.Info, at *publication) error {
	if c.json {
		return c.printJSON(struct {
			object.Info
			Publication *publication `json:"publication,omitempty"`
		}{o, at})
	}
	return c.printObject(o, at)
}

func (c *cli) printObject(o object.Info, at *publication) error {
	var rows [][]string
	line := func(what, value string) { rows = append(rows, []string{what, value}) }
	line("name", nameOf(o))
	line("id", o.ID.String())
	line("size", fmt.Sprintf("%s (%s)", object.Counted(o.SizeBytes, "byte"), size(o.SizeBytes)))
	line("kind, class", o.Kind.String()+", "+o.Class.String())
	line("state", o.State.String())
	line("references", fmt.Sprint(o.Refs))
	line("memory", memoryOf(o))
	line("tenant", o.Tenant)
	if at != nil {
		line("published", at.String())
	}
	if o.Creator != "" || o.CreatorPID != 0 { // of what is not on this node it is not known
		line("made by", fmt.Sprintf("%s (pid %d)", orDash(o.Creator), o.CreatorPID))
	}
	line("created", o.Created.Local().Format(time.RFC3339))
	if o.Sealed != nil {
		line("sealed", o.Sealed.Local().Format(time.RFC3339))
	}
	if o.Strict {
		line("strict", "yes")
	}
	if o.Checksum {
		line("checksum", "known")
	}
	if o.Expires != nil {
		line("expires", o.Expires.Local().Format(time.RFC3339))
	}
	if o.OnDisk {
		line("on disk", "yes")
	}
	if o.Moving != nil {
		line("moving", fmt.Sprintf("to %s, %s of %s", o.Moving.To, size(o.Moving.DoneBytes), size(o.SizeBytes)))
	}
	if o.Pinned {
		line("pinned", "yes")
	}
	if o.Cached {
		line("cached copy", "yes: it goes when memory is short")
	}
	if from := copiedFrom(o); from != "" {
		line("copied from", from)
	}
	if len(o.Nodes) > 0 {
		comes := " (a get brings it here)"
		switch {
		case at != nil && at.Have == 0:
			comes = " (none of them has it just now)"
		case o.Kind != object.Host:
			comes = " (a get brings it here, into host memory)"
		}
		line("on nodes", plain(strings.Join(o.Nodes, ", "))+comes)
	}
	if len(o.Labels) > 0 {
		line("labels", labelText(o.Labels))
	}
	if len(o.Grants) > 0 {
		line("shared with", strings.Join(o.Grants, ", "))
	}
	if o.Fault != "" {
		line("fault", o.Fault)
	}
	if len(o.Meta) > 0 {
		line("meta", string(o.Meta))
	}
	return fields(c.term.out, c.term.screen, rows)
}

// copiedFrom says where a replica or copy came from, and in what memory it was made; "": it is none, or not known.
func copiedFrom(o object.Info) string {
	switch from := plain(o.CopiedFromNode); {
	case o.CopiedFrom == object.Host:
		return from
	case from == "":
		return fmt.Sprintf("memory of kind %s, of a device of another node", o.CopiedFrom)
	default:
		return fmt.Sprintf("%s (made in memory of kind %s, of a device)", from, o.CopiedFrom)
	}
}

// memoryOf says where an object's bytes are.
func memoryOf(o object.Info) string {
	switch {
	case len(o.Nodes) > 0:
		return "none on this node"
	case o.State == object.Spilled && o.Kind != object.Host:
		return fmt.Sprintf("not of %s just now: the next use brings it back", deviceOf(o))
	case o.Kind != object.Host:
		return deviceOf(o)
	case o.State == object.Spilled:
		return "none just now: the next use brings it back from disk"
	case o.Segment == 0:
		return "none"
	}
	return fmt.Sprintf("segment %d, from byte %d", o.Segment, o.Offset)
}

func deviceOf(o object.Info) string {
	if o.Kind == object.OpenCL {
		return fmt.Sprintf("OpenCL device %s", o.Device)
	}
	return fmt.Sprintf("GPU %s", o.Device)
}
