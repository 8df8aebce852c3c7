package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tendril/client"
	"tendril/store/object"
)

func (c *cli) composeVerb() *cobra.Command {
	var persist bool
	var opts client.CreateOptions
	var meta string
	cmd := &cobra.Command{
		Use:   "compose NAME PART=OBJECT…",
		Short: "Make an object whose parts are other objects",
		Long: "Make an object whose parts are other objects, given by name or ID. It keeps its parts: a part that is deleted loses\n" +
			"its name, but stays as long as the whole. `tendril stat NAME` shows the tree.",
		Example: "  tendril compose sample image=photo.jpg mask=photo.mask --meta '{\"split\":\"train\"}'\n  tendril compose set a=sample b=0123456789abcdef0123456789abcdef --persist",
		GroupID: "store",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Name, opts.Class, opts.Meta = args[0], object.Named, []byte(meta)
			if persist {
				opts.Class = object.Persisted
			}
			return c.compose(cmd.Context(), args[1:], opts)
		},
	}
	cmd.Flags().StringVar(&meta, "meta", "", "metadata, such as JSON")
	cmd.Flags().StringToStringVar(&opts.Labels, "label", nil, "`KEY=VALUE`, for ls --label; may be repeated")
	cmd.Flags().BoolVar(&persist, "persist", false, "also keep it on disk; its parts must already be persisted")
	return c.jsonFlag(cmd)
}

func (c *cli) compose(ctx context.Context, parts []string, opts client.CreateOptions) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	members := make([]object.Member, len(parts))
	for i, p := range parts {
		name, what, ok := strings.Cut(p, "=")
		if !ok {
			return usagef("%q: want PART=OBJECT", p)
		}
		info, err := lookup(ctx, conn, what)
		if err != nil {
			return fmt.Errorf("part %s: %w", name, err)
		}
		members[i] = object.Member{Name: name, ID: info.ID}
	}
	obj, err := conn.Compose(ctx, members, opts)
	if err != nil {
		return fmt.Errorf("compose %s: %w", opts.Name, err)
	}
	defer obj.Release()
	if c.json {
		info, err := obj.Info(ctx)
		if err != nil {
			return err
		}
		return c.printJSON(info)
	}
	fmt.Fprintf(c.term.out, "%s  %s  %s\n", obj.ID(), object.Counted(len(members), "part"), plain(opts.Name))
	return nil
}

// printTree shows what a composite has, indented.
func (c *cli) printTree(ctx context.Context, conn *client.Conn, members []object.Member, indent string) error {
	for _, m := range members {
		info, err := conn.Stat(ctx, m.ID)
		if err != nil {
			fmt.Fprintf(c.term.out, "%s%s  %s  (%v)\n", indent, plain(m.Name), m.ID, err)
			continue
		}
		fmt.Fprintf(c.term.out, "%s%s  %s  %s  %s\n", indent, plain(m.Name), m.ID, size(info.SizeBytes),
			orDash(plain(info.Name)))
		if err := c.printTree(ctx, conn, info.Members, indent+"  "); err != nil {
			return err
		}
	}
	return nil
}
