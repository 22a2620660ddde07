//! Help texts that follow the descriptions of commands and options. `-h` fits a screen of 24 lines and 80 columns, and
//! `--help` is complete.
//!
//! **Invariant:** lines broken by hand fit 80 columns. Each paragraph is a single line, which clap wraps.

/// Template for the help of zmove itself. The text after the usage lists the commands by purpose.
pub(super) const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}";

macro_rules! commands {
    () => {
        "\
Move     push     Send files and directories to a host or a local directory
         pull     Fetch files and directories from another host
         copy     Push, pull, or copy between two hosts; 'result' reports on it
         verify   Compare a tree with its copy by hash, and change nothing
         cluster  Send one job from many nodes to receivers with shared storage
Jobs     submit   Run in background; 'jobs' lists, 'job' shows, 'runner' runs
Receive  serve    Run the daemon in the foreground
         allow    Grant a key access to directories on this host, or revoke it
         status   Show the daemon; 'stop' ends a transfer, 'drain' shuts it down
         journal  Show or remove partial transfers; 'clean' removes leftovers
Keys     key      Show the fingerprint of your key, or create a new key
         trust    Fetch and pin a host's key before the first push, or forget it
Measure  scan     Count the files of a tree by size
         doctor   Check for problems that slow down or break transfers
         probe    Measure the path to a host, and predict the duration of a push
         sweep    Measure storage throughput by file size
         trace    Summarize or plot a trace written by 'push --trace'
Shell    completions  Print the completion script for bash, zsh or fish
"
    };
}

pub(super) const SHORT: &str = concat!(
    commands!(),
    "See 'zmove COMMAND -h' or '--help'; 'zmove --help' also lists exit codes."
);

pub(crate) const LONG: &str = concat!(
    commands!(),
    "
Examples:
  zmove push run7 dtn.example.org:/data/    creates /data/run7
  zmove push run7/ dtn.example.org:/data/x  the contents of run7 go to /data/x
  zmove push a b 192.0.2.7:5870:in          below your first root there
  zmove push run7 alice@dtn.example.org:in  over ssh, below alice's home
  zmove push run7 /mnt/backup               to a local directory
  zmove push run7 dtn1,dtn2:/data/          to two receivers with shared storage
  zmove pull dtn.example.org:run7 .         creates ./run7
  zmove copy a.example.org:run7 b.example.org:/data
                                            directly from daemon to daemon
  zmove submit run7 dtn.example.org:/data/  in the background, with retries
  zmove verify run7 dtn.example.org:/data/  checks that both are still equal
  zmove trust dtn.example.org               before the first push
  zmove doctor dtn.example.org              finds what would slow a push down
  zmove probe dtn.example.org:x --for run7  predicts the duration of a push
  zmove trace t --svg t.svg                 plots the trace of 'push --trace t'

On the receiving host, once for each sender:
  zmove allow SHA256:... --name alice --root /data --write
  zmove serve --listen 0.0.0.0:5870
Run 'zmove key show' on the sender to print its fingerprint.

Exit codes:
   0  all done and flushed           10  no connection
   1  usage error                    11  a local file failed
   2  incompatible protocol version  12  connection lost or protocol error
   3  target refused                 13  receiver busy
   4  'doctor' found a problem       20  interrupted
   5  authentication failed          23  some files failed (-v names each), or
   6  'verify' found a difference        --delete or --strict-metadata was not
                                         fully met
                                     24  source directories changed each time
                                         they were read
                                     25  --max-delete limit reached

ZMOVE_HOME is the directory of keys, known paths and journals (default ~/.config/zmove; /etc/zmove for a daemon of \
root)."
);

pub(super) const PUSH_USAGE: &str = "zmove push [OPTIONS] <SRC>... <DST>";
pub(super) const PULL_USAGE: &str = "zmove pull [OPTIONS] HOST:<SRC>... <DIR>";
pub(super) const COPY_USAGE: &str = "zmove copy [OPTIONS] <SRC>... <DST>";
pub(super) const SUBMIT_USAGE: &str = "zmove submit [OPTIONS] <SRC>... <DST>";
pub(super) const VERIFY_USAGE: &str = "\
zmove verify [OPTIONS] <SRC>... <DST>
       zmove verify [OPTIONS] --manifest <FILE> <SRC>...";

/// The options of a push, a pull and a copy, grouped by purpose.
macro_rules! options {
    () => {
        "
Choose   --exclude, --include PATTERN  as in a .gitignore; last match decides
         --files-from FILE, -x         a list of paths; one file system only
Compare  -c, -u, --ignore-existing     by contents; skip newer; skip existing
         -n                            change nothing, list what would be done
Keep     -a, --preserve LIST           owners, devices etc., or a selection
Replace  --inplace, --delta WHEN       update in place; send only changed parts
Mirror   --delete, --max-delete N      remove entries that the source lacks
Path     --limit RATE, -e 'ssh -i K'   500Mbit or 100MiB; over ssh
         --accept-new, --strict        pin or refuse a host's new key
Result   --manifest FILE, --json, -q   hashes; JSON lines; errors only
         --verify media                read back from the target's storage
"
    };
}

macro_rules! places {
    () => {
        "\
'dir' arrives under its name, 'dir/' stands for its contents. DST is a local
directory, HOST:PATH, HOST:PORT:PATH, [IPv6]:PATH or USER@HOST:PATH (over ssh).
"
    };
}

pub(super) const PUSH_SHORT: &str = concat!(
    places!(),
    options!(),
    "\n'zmove push --help' describes all options."
);

pub(super) const PULL_SHORT: &str = concat!(
    "\
HOST:PATH, HOST:PORT:PATH and [IPv6]:PATH name a daemon, USER@HOST:PATH uses
ssh. ':PATH' is another source on that host. Quote patterns: 'HOST:*.h5'.
",
    options!(),
    "\n'zmove pull --help' describes all options."
);

pub(super) const COPY_SHORT: &str = concat!(
    places!(),
    options!(),
    "\n'zmove copy --help' describes all options."
);

pub(super) const VERIFY_SHORT: &str = "\
The arguments are those of the push: 'zmove verify run7/ HOST:x' checks whether
the target of 'zmove push run7/ HOST:x' equals run7. Nothing is changed.

Choose   --exclude, --include PATTERN  as in a .gitignore; last match decides
         --files-from FILE, -x         a list of paths; one file system only
         --one-way                     ignore entries only at the target
Compare  --manifest FILE               with hashes that were written earlier
         -a, --preserve LIST           owners, devices etc., or a selection
Path     -e 'ssh -i KEY', --ssh        over ssh
         --accept-new, --strict        pin or refuse a host's new key
Result   --json, -q                    JSON lines; errors only

'zmove verify --help' describes all options.";

pub(super) const PUSH_LONG: &str = "\
An absolute path on the receiver must be inside one of your roots there. A relative path is below the first root. \
Missing directories are created. If the same command runs again, it sends only files that are missing or differ. \
Every byte is hashed when it is read and again before it is stored. A file is renamed into place only when it is \
complete, except with --inplace.";

pub(super) const PULL_LONG: &str = "\
An absolute source path must be inside a directory that you may read there. A relative path is below the first of \
them. 'HOST:dir' arrives under its name, 'HOST:dir/' stands for its contents, and 'HOST:*.h5', in quotes, for the \
matching entries. Further sources on the same host may be written as ':SRC'. All options are those of a push, seen \
from the source. For example, the sending host enforces --limit.";

pub(super) const COPY_LONG: &str = "\
If one end is local, this is 'zmove push' or 'zmove pull'. From HOST1:SRC to HOST2:DST, the data goes directly from \
daemon to daemon. The copy continues after this command has ended. The first line of output shows how to ask for the \
result. HOST1 must let you read, and have files sent to HOST2: 'zmove allow KEY --name NAME --read-root DIR --to \
HOST2'. HOST2 must let you write. HOST1 connects to HOST2 under the name that you give here. The same command resumes \
the copy, or follows it if it is still running.";

pub(super) const VERIFY_LONG: &str = "\
Both sides read all files from storage, past the page cache, and compare hashes. No contents are sent, and nothing is \
changed. Each difference is one line: '+ ONLY AT THE SOURCE', '~ DIFFERS (HOW)' or '- ONLY AT THE TARGET'. For files \
larger than 4 MiB, the line names the byte ranges that differ, in units of 4 MiB. The metadata that a push would \
preserve, such as modes and times, is compared too (see --preserve). Pages that are not flushed yet are read from \
memory.

With --manifest, the files of SRC are compared with hashes that were written earlier. Write 'dir/' for the contents \
of dir, and HOST:dir/ for a daemon that lets you read. The lines are '~ DIFFERS', '+ NOT LISTED' and '- LISTED, BUT \
NOT THERE'.

Exit codes: 0 no difference; 6 a difference; 23 some files could not be read; others as for push.";

pub(super) const SUBMIT_SHORT: &str = "\
All options of 'zmove copy' apply. The command prints the job's number.

When     --at TIME, --every CRON       02:00; '0 2 * * *', each day at 2:00
         --after ID                    when that job is done
         --deadline TIME               time without progress [default: 24h]
         --priority N                  higher numbers start first
Watch    --watch, --rest TIME          move existing files, then new ones
Name     --label TEXT                  [default: the name of the first source]
         --submission-id ID            run once, even if submitted again

'zmove jobs' lists jobs, 'zmove job ID' shows one, 'zmove job ID wait' waits.
'zmove submit --help' describes all options.";

pub(super) const SUBMIT_LONG: &str = "\
A separate process does the job. A runner restarts the process until everything is at the target, an error occurs \
that a retry cannot solve, or there is no progress for the time of --deadline. The job survives the end of this \
terminal and of the runner. It survives a reboot if the runner is a service ('zmove runner --help'). Each attempt \
resumes the previous one. Relative paths start at the current directory. You are asked about unknown host keys now, \
because a running job cannot ask.

With --watch, the contents of SRC are moved to DST, and then each file after it was closed or has not changed for a \
while. Entries that are renamed or removed in SRC stay at the target.

Jobs are stored in $ZMOVE_JOBS, else in $ZMOVE_HOME/jobs, else in $XDG_STATE_HOME/zmove/jobs (default \
~/.local/state). The directory must be on a local file system.";

pub(super) const JOB_LONG: &str = "\
States: waiting (for a time, another job, or the next attempt), queued, running, paused. Final states: done, failed, \
cancelled, expired.";

pub(super) const RUNNER_LONG: &str = "\
Each user has one runner. It may be killed at any time: the processes of the jobs continue, and the next runner takes \
them over. If there is none, 'zmove submit' starts one in the background, which exits after 10 idle minutes. Run it \
as a service to survive reboots: 'systemctl --user enable --now zmove-runner' with 'loginctl enable-linger', or for \
another user 'systemctl enable --now zmove-runner@USER'.";

pub(super) const SWEEP_LONG: &str = "\
The sweep uses one directory below PATH, .zmove-sweep-NUMBER, and removes it at the end, also after an error or an \
interruption. The next sweep removes what a killed one left. It needs space for the budget, plus a reserve for other \
users. Every write is flushed, and reads bypass the page cache if possible; the table shows which method was used. \
The result is stored in ZMOVE_HOME/sweeps. Later pushes from or to this storage report the share of it that they \
reached.";

pub(super) const PROBE_LONG: &str = "\
The data comes from memory, is encrypted, hashed and counted like that of a push, and then discarded: a probe stores \
nothing. It fills the path for a few seconds per round, which other users will notice. The receiver admits anyone who \
may write there, and enforces the rate limit of the key. With a path, it writes at most 256 MiB there for 5 s, in a \
hidden directory that is then removed. The prediction is the time of the slowest of source storage, path and target \
storage for each size class, as far as they are known.";

pub(super) const DOCTOR_LONG: &str = "\
Each line begins with ok, note (may matter), slow (costs throughput) or bad (breaks transfers). The remedy is below \
it. Nothing is changed, no key is pinned, and root is not needed. The exit code is 4 if anything is bad. Run 'zmove \
doctor' on the other host to check its settings.";

pub(super) const CLEAN_LONG: &str = "\
A killed transfer leaves entries with hidden names (.zmove-...). The next transfer removes them in the directories \
that it enters. This command removes them in the whole tree. Entries of running transfers stay: on the target's host \
they are recognized by their processes, on other hosts by an age of less than 7 days. Directories of jobs with \
several receivers (.zmove-job-...) are watched for up to 25 s, also with -n. Parts of large files, from which the \
next transfer resumes, are listed and stay until they have not changed for 7 days (journal-age of a daemon). The exit \
code is 23 if something could not be removed.";

pub(super) const JOURNAL_CLEAN_LONG: &str = "\
A part file is removed only if it is the file that the journal describes: by name, inode and birth time, in the \
target directory in which it was created. Any other file is reported and stays.";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use crate::args::Args;

    const ROWS: usize = 24;
    const COLUMNS: usize = 80;

    fn built() -> Command {
        // Help that fits a narrow terminal fits every terminal. The width is fixed so that the test does not depend on
        // its environment.
        let mut command = Args::command()
            .mut_subcommands(|command| command.term_width(COLUMNS))
            .term_width(COLUMNS);
        command.build();
        command
    }

    fn every(command: &Command, visit: &mut impl FnMut(&Command)) {
        visit(command);
        command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .for_each(|below| every(below, visit));
    }

    #[test]
    fn short_help_fits_one_screen() {
        every(&built(), &mut |command| {
            // The help of 'help' itself is clap's list of all commands.
            if command.get_name() == "help" {
                return;
            }
            let help = command.clone().render_help().to_string();
            let widest = help
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            let rows = help.trim_end().lines().count();
            assert!(
                rows < ROWS && widest <= COLUMNS,
                "{rows} rows of {widest}:\n{help}"
            );
        });
    }

    #[test]
    fn long_help_wraps() {
        every(&built(), &mut |command| {
            let help = command.clone().render_long_help().to_string();
            for line in help.lines() {
                assert!(
                    line.chars().count() <= COLUMNS,
                    "{}: {line}",
                    command.get_name()
                );
            }
        });
    }

    #[test]
    fn the_list_of_commands_is_whole() {
        for command in built()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let name = command.get_name();
            let is_listed = |text: &str| {
                text.lines().any(|line| {
                    line.get(9..)
                        .is_some_and(|line| line.starts_with(&format!("{name} ")))
                }) || text.contains(&format!("'{name}' "))
            };
            assert!(
                name == "help" || is_listed(super::SHORT) && is_listed(super::LONG),
                "{name}"
            );
        }
    }

    #[test]
    fn short_help_names_options_that_there_are() {
        let texts = [
            ("push", super::PUSH_SHORT),
            ("pull", super::PULL_SHORT),
            ("copy", super::COPY_SHORT),
            ("verify", super::VERIFY_SHORT),
        ];
        for (name, text) in texts {
            let built = built();
            let command = built.find_subcommand(name).unwrap();
            let words = text
                .split([' ', ',', '\n', '\''])
                .filter(|word| word.starts_with('-') && word.len() > 1);
            for word in words {
                let is_there = command
                    .get_arguments()
                    .any(|arg| match word.strip_prefix("--") {
                        Some(long) => arg.get_long() == Some(long),
                        None => {
                            arg.get_short().map(|short| format!("-{short}")).as_deref()
                                == Some(word)
                        }
                    });
                assert!(is_there || word == "-i", "{word} of {name}");
            }
        }
    }
}
