package main

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"text/tabwriter"

	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/tap/bridge"
	"github.com/spf13/cobra"
)

func newTapCmd() *cobra.Command {
	return group("tap", "Create, delete and list TAP interfaces", newTapCreateCmd(), newTapDeleteCmd(), newTapListCmd())
}

func newTapCreateCmd() *cobra.Command {
	var cfg tap.Config
	var owner, grp string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a TAP that stays, for this or another user",
		Args:  exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Name = args[0]
			var err error
			if cfg.Owner, err = lookup(owner, "owner", func(s string) (string, error) {
				u, err := user.Lookup(s)
				if err != nil {
					return "", err
				}
				return u.Uid, nil
			}); err != nil {
				return err
			}
			if cfg.Group, err = lookup(grp, "group", func(s string) (string, error) {
				g, err := user.LookupGroup(s)
				if err != nil {
					return "", err
				}
				return g.Gid, nil
			}); err != nil {
				return err
			}
			if err := cfg.Check(); err != nil {
				return &usageError{err}
			}
			if err := tap.Create(cfg); err != nil {
				return namedWrongly(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), cfg.Name)
			return err
		},
	}
	p := cmd.Flags()
	p.IntVar(&cfg.MTU, "mtu", 0, "largest IP packet in octets (default 1500)")
	p.IntVar(&cfg.Queues, "queues", 1, "data queues")
	p.StringVar(&owner, "owner", "", "user, by name or number, who may attach without privileges")
	p.StringVar(&grp, "group", "", "group, by name or number, that may attach without privileges")
	return cmd
}

// namedWrongly makes a usage error of one that says that the wrong thing was named:
// nothing was made or changed then.
func namedWrongly(err error) error {
	for _, is := range []error{tap.ErrName, tap.ErrNotTAP, tap.ErrMTU, tap.ErrExists, tap.ErrNotExist,
		bridge.ErrNotExist, bridge.ErrNotBridge, bridge.ErrElsewhere, bridge.ErrDefaultRoute} {
		if errors.Is(err, is) {
			return &usageError{err}
		}
	}
	return err
}

// lookup turns a name or a number into a number.
func lookup(s, flag string, find func(string) (string, error)) (*int, error) {
	if s == "" {
		return nil, nil
	}
	text := s
	if _, err := strconv.Atoi(s); err != nil {
		if text, err = find(s); err != nil {
			return nil, usagef("--%s %s: %w", flag, s, err)
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil, usagef("--%s %s: not a number from 0", flag, s)
	}
	return &n, nil
}

func newTapDeleteCmd() *cobra.Command {
	return &cobra.Command{Use: "delete NAME", Short: "Delete a TAP", Args: exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return namedWrongly(tap.Delete(args[0]))
		}}
}

func newTapListCmd() *cobra.Command {
	var o format
	cmd := &cobra.Command{Use: "list", Short: "List the TAPs of this network namespace", Args: noArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := tap.List()
			if err != nil {
				return err
			}
			if o.json {
				if all == nil {
					all = []tap.Info{}
				}
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tMTU\tSTATE\tOWNER\tGROUP\tQUEUES\tPERSISTENT")
			for _, i := range all {
				queues, persistent := "one", "no"
				if i.MultiQueue {
					queues = "several"
				}
				if i.Persistent {
					persistent = "yes"
				}
				if !i.Known {
					queues, persistent = "?", "?"
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.MTU, upDown(i.Up), id(i.Owner), id(i.Group), queues, persistent)
			}
			return w.Flush()
		}}
	cmd.Flags().VarP(&o, "output", "o", "text or json")
	return cmd
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func id(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func newBridgeCmd() *cobra.Command {
	return group("bridge", "Put TAPs and NICs on Linux bridges", newBridgeAttachCmd(), newBridgeDetachCmd(), newBridgeShowCmd())
}

func newBridgeAttachCmd() *cobra.Command {
	var o bridge.Options
	cmd := &cobra.Command{Use: "attach BRIDGE IFACE", Short: "Put a TAP or a NIC on a bridge", Args: exactArgs("BRIDGE", "IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			did, err := bridge.Attach(args[0], args[1], o)
			return printCommands(cmd, did, o.DryRun, err)
		}}
	bridgeFlags(cmd, &o)
	cmd.Flags().BoolVar(&o.Force, "force", false, "even if the interface carries the default route")
	cmd.Flags().BoolVar(&o.Create, "create", false, "make the bridge where it does not exist")
	return cmd
}

func newBridgeDetachCmd() *cobra.Command {
	var o bridge.Options
	cmd := &cobra.Command{Use: "detach IFACE", Short: "Take a TAP or a NIC off its bridge", Args: exactArgs("IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			did, err := bridge.Detach(args[0], o)
			return printCommands(cmd, did, o.DryRun, err)
		}}
	bridgeFlags(cmd, &o)
	return cmd
}

func bridgeFlags(cmd *cobra.Command, o *bridge.Options) {
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "print the ip commands that do the same, and change nothing")
}

func printCommands(cmd *cobra.Command, did []string, dry bool, err error) error {
	if err != nil || !dry {
		return namedWrongly(err)
	}
	for _, line := range did {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
			return err
		}
	}
	return nil
}

func newBridgeShowCmd() *cobra.Command {
	var o format
	cmd := &cobra.Command{Use: "show [BRIDGE]", Short: "Show bridges and what is on them",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("bridge show takes one bridge at most, %d given", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			all, err := bridge.Show(name)
			if err != nil {
				return namedWrongly(err)
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "BRIDGE\tPORT\tKIND\tMTU\tSTATE")
			for _, b := range all {
				fmt.Fprintf(w, "%s\t\tbridge\t%d\t%s\n", b.Name, b.MTU, upDown(b.Up))
				for _, p := range b.Ports {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", b.Name, p.Name, p.Kind, p.MTU, upDown(p.Up))
				}
			}
			return w.Flush()
		}}
	cmd.Flags().VarP(&o, "output", "o", "text or json")
	return cmd
}
