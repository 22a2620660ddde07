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
         copy     Either, or between other hosts, of which 'result' tells more
         verify   Compare a tree with its copy by hash, and change nothing
         cluster  Have many nodes send one job to receivers that share a storage
Jobs     submit   In the background; 'jobs' lists, 'job' shows, 'runner' does it
Receive  serve    Listen for senders, in the foreground
         allow    Let a key write or read below some directories, or no more
         status   What this host's daemon does; 'stop' one, 'drain' to the last
         journal  Show or remove parts to resume; 'clean' removes leftovers
Keys     key      Show the fingerprint of your key, or make a new one
         trust    Get to know a host's key before the first push, or forget it
Measure  scan     Count the files of a tree by size
         doctor   Look for what would slow down or break a transfer
         probe    Measure the path to a host, and predict how long a push takes
         sweep    Measure what a storage gives, by file size
         trace    Sum up or draw what 'push --trace' wrote
Shell    completions  Print what completes zmove's words in bash, zsh or fish
"
    };
}

pub(super) const SHORT: &str = concat!(
    commands!(),
    "'zmove COMMAND -h' is one screen, '--help' all; 'zmove --help' has exit codes."
);

pub(crate) const LONG: &str = concat!(
    commands!(),
    "
Examples:
  zmove push run7 dtn.example.org:/data/    run7 arrives as /data/run7
  zmove push run7/ dtn.example.org:/data/x  what is in run7 arrives in /data/x
  zmove push a b 192.0.2.7:5870:in          below your first root there
  zmove push run7 alice@dtn.example.org:in  over ssh, below alice's home
  zmove push run7 /mnt/backup               to a local directory
  zmove push run7 dtn1,dtn2:/data/          to both, which share that storage
  zmove pull dtn.example.org:run7 .         run7 arrives here
  zmove copy a.example.org:run7 b.example.org:/data
                                            from one daemon to the other
  zmove submit run7 dtn.example.org:/data/  in the background, whatever comes
  zmove verify run7 dtn.example.org:/data/  whether that is still the same
  zmove trust dtn.example.org               before the first push
  zmove doctor dtn.example.org              what would slow a push there
  zmove probe dtn.example.org:x --for run7  how long a push of run7 takes
  zmove trace t --svg t.svg                 draws what 'push --trace t' wrote

On the receiving host, once for each sender:
  zmove allow SHA256:... --name alice --root /data --write
  zmove serve --listen 0.0.0.0:5870
The sender's fingerprint is what 'zmove key show' prints there.

Exit codes:
   0  all done and flushed           10  no connection
   1  usage                          11  a file here failed
   2  other protocol version         12  connection lost or protocol broken
   3  target refused                 13  the receiver is busy
   4  'doctor' found a problem       20  interrupted
   5  not authenticated              23  some files failed (-v names each), or
   6  'verify' found a difference        --delete or --strict-metadata was not
                                         met in full
                                     24  directories here changed each time
                                         they were read
                                     25  --max-delete kept some

ZMOVE_HOME is where keys, known paths and journals are kept (default \
~/.config/zmove; for a daemon run as root /etc/zmove)."
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
Choose   --exclude, --include PATTERN  as in a .gitignore: the last one decides
         --files-from FILE, -x         a list of paths; one file system
Compare  -c, -u, --ignore-existing     by contents; leave what is newer; or all
         -n                            change nothing, list what would be done
Keep     -a, --preserve LIST           owners, devices and so on, or some of it
Replace  --inplace, --delta WHEN       in their place; only parts that differ
Mirror   --delete, --max-delete N      remove what is not at the source
Path     --limit RATE, -e 'ssh -i K'   500Mbit or 100MiB; over ssh
         --accept-new, --strict        a host's new key: take it, or refuse
Result   --manifest FILE, --json, -q   hashes; JSON lines; nothing but errors
         --verify media                read back from the target's storage
"
    };
}

macro_rules! places {
    () => {
        "\
'dir' arrives under its name, 'dir/' means what is in it. DST is a directory,
HOST:PATH (a daemon), HOST:PORT:PATH, [IPv6]:PATH, USER@HOST:PATH (over ssh).
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
HOST:PATH is at a daemon, HOST:PORT:PATH and [IPv6]:PATH too, USER@HOST:PATH
over ssh; ':PATH' is one more of that host. Put patterns in quotes: 'H:*.h5'.
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
The words are those of the push: 'zmove verify run7/ HOST:x' says whether the
target of 'zmove push run7/ HOST:x' is what is in run7. Nothing is changed.

Choose   --exclude, --include PATTERN  as in a .gitignore: the last one decides
         --files-from FILE, -x         a list of paths; one file system
         --one-way                     nothing of what is at the target alone
Compare  --manifest FILE               with hashes that were written earlier
         -a, --preserve LIST           owners, devices and so on, or some of it
Path     -e 'ssh -i KEY', --ssh        over ssh
         --accept-new, --strict        a host's new key: take it, or refuse
Result   --json, -q                    JSON lines; nothing but errors

'zmove verify --help' describes all options.";

pub(super) const PUSH_LONG: &str = "\
A path on the receiver that starts with '/' must lie in one of your roots there; another is below the first of them. \
Missing directories are made. Running the same command again sends only what is missing or differs. Every byte is \
hashed when read and again before it is stored; a file gets its name only when it is whole, but for what --inplace \
changes.";

pub(super) const PULL_LONG: &str = "\
A source that starts with '/' must lie in a directory that you may read there; another is below the first of them. \
'HOST:dir' arrives under its name, 'HOST:dir/' means what is in it, and 'HOST:*.h5', in quotes, what matches there; \
further sources of the same host may be written ':SRC'. All options are those of a push, seen from the source: \
--limit, for example, is kept by the host that sends.";

pub(super) const COPY_LONG: &str = "\
With one end here this is 'zmove push' or 'zmove pull'. From HOST1:SRC to HOST2:DST the data goes straight between \
two daemons, and on when this command has ended, whose first line says how to ask for the result. HOST1 must let you \
read, and have files sent to HOST2: 'zmove allow KEY --name NAME --read-root DIR --to HOST2'; HOST2 must let you \
write. HOST1 dials HOST2 under the name that you give here. The same command again goes on where it was, or listens \
to the copy if it still runs.";

pub(super) const VERIFY_LONG: &str = "\
Both sides read all files from their storage, past the page cache, and compare hashes; no contents travel, and \
nothing is changed. Each difference is a line: '+ ONLY AT THE SOURCE', '~ DIFFERS (HOW)', '- ONLY AT THE TARGET'; of \
files larger than 4 MiB it names the bytes, in pieces of 4 MiB. What a push would keep is compared too: modes, times \
and so on (see --preserve). Pages that are not flushed yet are read from memory.

With --manifest the files of SRC are compared with hashes that were written earlier: 'dir/' for what is in dir, and \
HOST:dir/ at a daemon that lets you read. '~ DIFFERS', '+ NOT LISTED', '- LISTED, BUT NOT THERE'.

Exit codes: 0 all is the same; 6 something differs; 23 something could not be read; others as for push.";

pub(super) const SUBMIT_SHORT: &str = "\
All options of 'zmove copy' are options of this. It prints the job's number.

When     --at TIME, --every CRON       02:00; '0 2 * * *', each day at 2
         --after ID                    when that job is done
         --deadline TIME               how long to try again [default: 24h]
         --priority N                  those with a higher number begin first
Watch    --watch, --rest TIME          move what is there, and then what comes
Name     --label TEXT                  [default: that of the first source]
         --submission-id ID            once only, however often it is submitted

'zmove jobs' lists jobs, 'zmove job ID' shows one, 'zmove job ID wait' waits.
'zmove submit --help' describes all options.";

pub(super) const SUBMIT_LONG: &str = "\
The job is done by a process of its own, which a runner starts again until all is at the target, an error comes that \
another attempt would meet too, or nothing has come further for as long as --deadline says. It outlives this terminal, \
the runner and a restart of the host, where the runner is a service ('zmove runner --help'). Each attempt goes on where \
the last one was. Paths are those of the directory in which this is typed. The key of a host that is not known is asked \
about now, since a job can ask nobody.

With --watch what is in SRC arrives in DST, and then each file once it has been closed, or has rested. What is renamed or \
removed in SRC stays at the target.

Jobs are kept in $ZMOVE_JOBS, else in jobs below $ZMOVE_HOME, else in zmove/jobs below $XDG_STATE_HOME (default \
~/.local/state). That must be on a file system of this host.";

pub(super) const JOB_LONG: &str = "\
States: waiting (for a time, another job, or the next attempt), queued, running, paused; and at the end done, failed, \
cancelled or expired.";

pub(super) const RUNNER_LONG: &str = "\
There is one runner for a user's jobs. It may be killed at any time: the processes of jobs go on, and the next runner \
takes them over. Without one, 'zmove submit' starts one in the background, which ends when there has been nothing to do \
for 10 minutes. As a service it outlives restarts of the host: 'systemctl --user enable --now zmove-runner' with \
'loginctl enable-linger', or for another user 'systemctl enable --now zmove-runner@USER'.";

pub(super) const SWEEP_LONG: &str = "\
It works in one directory of its own below PATH, .zmove-sweep-NUMBER, and removes that at the end, after an \
error and when it is interrupted; what a killed one left is removed by the next. It needs room for the budget and a \
reserve for others. Every write is flushed, and no read comes from the page cache where that can be helped; the table \
says which way. The result is kept in ZMOVE_HOME/sweeps, and later pushes from or to that storage say their share of \
it.";

pub(super) const PROBE_LONG: &str = "\
The bytes come from memory, are encrypted, hashed and counted as those of a push, and thrown away: a probe stores \
nothing. It fills the path for some seconds a round, which others on it will notice. The receiver lets in whoever may \
write there, and holds the key to its rate. With a path it writes at most 256 MiB below it for 5 s, in a hidden \
directory that is removed. A prediction is the time of the slowest of source storage, path and target storage for \
each class of sizes, as far as they are known.";

pub(super) const DOCTOR_LONG: &str = "\
Each line begins with ok, note (may matter), slow (costs speed) or bad (breaks a transfer), and below it stands what \
mends it. Nothing is changed, no key is pinned, and root is not needed. Exit code 4 when something is bad. What the \
other end's settings are, only a 'zmove doctor' there can say.";

pub(super) const CLEAN_LONG: &str = "\
A killed transfer leaves entries with hidden names (.zmove-...). The next transfer removes them in the directories that \
it enters; this command does so in the whole tree. What transfers that still run have made stays: on the target's \
host their processes show that, and on other hosts an age of less than 7 days. Directories of jobs of several \
receivers (.zmove-job-...) are watched for up to 25 s, also with -n. Parts of large files, from which the next \
transfer resumes, are listed and stay until nothing has changed them for 7 days (journal-age of a daemon). Exit code 23 \
if something could not be removed.";

pub(super) const JOURNAL_CLEAN_LONG: &str = "\
A part file is removed only if it is the one that the journal means: by name, inode and time of birth, in the target \
directory that it was made in. Anything else is named and left.";

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
