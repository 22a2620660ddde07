//! The arguments of `zmove submit`, `jobs`, `job` and `runner`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use zmove_api::PublicName;
use zmove_engine::Timeout;
use zmove_jobs::{JobId, Moment, Schedule, StartTime, State};

use crate::args::daemon::serve::parse_address;
use crate::args::transfers::copy::CopyArgs;
use crate::value::age::Age;

#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) copy: CopyArgs,
    #[command(flatten)]
    pub(crate) job: JobOptions,
}

/// What is said of a job beside its transfer.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = JOB, mut_args(|arg| arg.hide_short_help(true)))]
pub(crate) struct JobOptions {
    /// A name for it [default: that of the first source]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Do nothing if a job with this id is there already, also one that has failed, and print that one's number: for
    /// programs that do not know whether their last word has arrived. An id names one submission, not a task
    #[arg(long, value_name = "ID")]
    pub(crate) submission_id: Option<String>,
    /// Jobs with a higher number begin first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) priority: i32,
    /// Begin no earlier: 02:00, '2026-11-26 02:00' or 2026-11-26T02:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_at)]
    pub(crate) at: Option<StartTime>,
    /// Do it again and again, at times as in a crontab: '0 2 * * *' is each day at 2
    #[arg(long, value_name = "CRON")]
    pub(crate) every: Option<Schedule>,
    /// Begin when this job is done; fail if it fails
    #[arg(long, value_name = "ID")]
    pub(crate) after: Vec<JobId>,
    /// Move what is in SRC, and then each file that comes, once it has been closed or has rested, until the job is
    /// cancelled
    #[arg(long, conflicts_with = "every")]
    pub(crate) watch: bool,
    /// With --watch: how long a file rests that nobody has closed before it is moved [default: 3s]
    #[arg(long, value_name = "TIME", requires = "watch")]
    pub(crate) rest: Option<Age>,
    /// With --watch: how often the tree is walked to find what the kernel has not told [default: 1min, and where it
    /// tells nothing as often as --rest says]
    #[arg(long, value_name = "TIME", requires = "watch")]
    pub(crate) rescan: Option<Age>,
    /// How long to try again before giving up; an attempt that comes further than all before begins this anew
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) deadline: Age,
    /// Give this text, such as a mail address, to the hook and the webhook of notify.toml with each event of the job
    #[arg(long, value_name = "TEXT")]
    pub(crate) notify: Option<String>,
}

pub(crate) const JOB: &str = "The job";

impl SubmitArgs {
    /// A copy as a job of which nothing more was said.
    pub(crate) fn of(copy: CopyArgs) -> Self {
        Self {
            copy,
            job: JobOptions {
                deadline: DEADLINE,
                ..JobOptions::default()
            },
        }
    }
}

const DEADLINE: Age = Age(Duration::from_secs(24 * 60 * 60));

/// Reads an address of this host, or a port of the loopback alone.
fn parse_http(text: &str) -> Result<SocketAddr, &'static str> {
    parse_address(text, Ipv4Addr::LOCALHOST.into())
        .ok_or("write ADDRESS:PORT, as 127.0.0.1:8470, or a port alone")
}

fn parse_at(text: &str) -> Result<StartTime, String> {
    StartTime::parse(text, Moment::now())
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<JobsCommand>,
    /// Also those that ended earlier
    #[arg(long)]
    pub(crate) all: bool,
    /// Only those in these states, for example failed,expired
    ///
    /// A job is waiting, queued, running or paused, and at the end done, failed, cancelled or expired.
    #[arg(long, value_name = "STATE,...", value_delimiter = ',')]
    pub(crate) state: Vec<State>,
    /// Print each job as a JSON object on a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Write a copy of the list of jobs into a new file
    Backup {
        /// The file
        file: PathBuf,
    },
    /// Forget jobs that ended long ago, and remove their logs
    Clean {
        /// Jobs that ended so long ago: 90s, 30min, 12h, 7d, 2w
        #[arg(long, value_name = "AGE", default_value = "30d")]
        older_than: Age,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// The job's number, as 'zmove submit' has printed it
    pub(crate) id: JobId,
    /// Print it as a JSON object on a line, with 'log' each event
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Option<JobAction>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobAction {
    /// Show what has happened to it, and what its processes have said
    Log,
    /// Wait for its end: exit code 0 done, 30 failed, 31 cancelled, 32 expired, 33 not within --timeout
    Wait {
        /// How long: 90 or 90s, 30min, 12h, 7d
        #[arg(long, value_name = "TIME")]
        timeout: Option<Timeout>,
    },
    /// Show how far it is until it ends; Ctrl-C leaves it alone. Exit codes are those of 'wait'
    Attach,
    /// Hold it; what is at the target stays, and it goes on from there
    Pause,
    /// Let it go on
    Resume,
    /// End it, and its schedule; what is at the target stays
    Cancel,
    /// Submit once more what it has done
    Rerun,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunnerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RunnerCommand>,
    /// How many jobs run at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) max: usize,
    /// How many of them with one other host
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) max_per_host: usize,
    /// How many with one target [default: no limit]
    #[arg(long, value_name = "N")]
    pub(crate) max_per_target: Option<usize>,
    /// How many with one key [default: no limit]
    ///
    /// A ZMOVE_HOME has one.
    #[arg(long, value_name = "N")]
    pub(crate) max_per_key: Option<usize>,
    /// End once nothing was to do for so long: 10min, 1h
    #[arg(long, value_name = "TIME")]
    pub(crate) until_idle: Option<Age>,
    /// Serve the page and the API for programs
    ///
    /// They are at the socket 'api.sock' in the directory of the jobs, and at this address of the loopback, or this
    /// port of 127.0.0.1, for whoever has the word in the file 'token' there. Other hosts
    /// reach them through ssh or a reverse proxy.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, conflicts_with = "detached", value_parser = parse_http)]
    pub(crate) http: Option<Option<SocketAddr>>,
    /// Name of a reverse proxy in front of the address of '--http'
    ///
    /// The proxy runs on this host and speaks TLS with its clients. Write NAME:PORT if its port is not 443.
    /// OPERATIONS.md has examples for nginx and Caddy.
    #[arg(long, value_name = "NAME", requires = "http", hide_short_help = true)]
    pub(crate) http_name: Option<PublicName>,
    /// Leave the terminal, and end without a word where there is a runner
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunnerCommand {
    /// Send a test event to the hook and the webhook of notify.toml, now
    Notify,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_the_loopback() {
        for text in ["8470", ":8470", "127.0.0.1:8470"] {
            assert_eq!(
                parse_http(text),
                Ok((Ipv4Addr::LOCALHOST, 8470).into()),
                "{text}"
            );
        }
        assert!(
            parse_http("localhost")
                .unwrap_err()
                .contains("ADDRESS:PORT")
        );
    }
}
