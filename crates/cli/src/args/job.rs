//! The arguments of `zmove submit`, `zmove jobs`, `zmove job` and `zmove runner`.

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

/// The options of a job in addition to those of its transfer.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = JOB, mut_args(|arg| arg.hide_short_help(true)))]
pub(crate) struct JobOptions {
    /// Name of the job [default: the name of the first source]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Do nothing if a job with this ID exists, and print the number of that job
    ///
    /// This lets a program repeat a submission whose result it did not receive. Failed jobs count too. An ID names one
    /// submission, not a task.
    #[arg(long, value_name = "ID")]
    pub(crate) submission_id: Option<String>,
    /// Jobs with a higher number start first
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) priority: i32,
    /// Earliest start time: 02:00, '2026-11-26 02:00' or 2026-11-26T02:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_at)]
    pub(crate) at: Option<StartTime>,
    /// Repeat the job on a crontab schedule; '0 2 * * *' is each day at 2:00
    #[arg(long, value_name = "CRON")]
    pub(crate) every: Option<Schedule>,
    /// Start after this job is done; fail if it fails
    #[arg(long, value_name = "ID")]
    pub(crate) after: Vec<JobId>,
    /// Move the contents of SRC, then each new file, until the job is cancelled
    ///
    /// A new file is moved once it has been closed, or has not changed for the time of --rest.
    #[arg(long, conflicts_with = "every")]
    pub(crate) watch: bool,
    /// With --watch: time after which an unchanged file that was not closed is moved [default: 3s]
    #[arg(long, value_name = "TIME", requires = "watch")]
    pub(crate) rest: Option<Age>,
    /// With --watch: interval between walks of the tree, which find changes that the kernel did not report [default:
    /// 1min, or the time of --rest if the kernel reports no changes at all]
    #[arg(long, value_name = "TIME", requires = "watch")]
    pub(crate) rescan: Option<Age>,
    /// Give up after this time without progress
    ///
    /// The time starts again with each attempt that gets further than all earlier ones.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) deadline: Age,
    /// Text, such as a mail address, passed to the hook and webhook of notify.toml with each event of the job
    #[arg(long, value_name = "TEXT")]
    pub(crate) notify: Option<String>,
}

pub(crate) const JOB: &str = "Job";

impl SubmitArgs {
    /// Returns the arguments of a job that runs this copy, with default options.
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

/// Parses an address with a port. If the text is only a port, combines it with the loopback address.
fn parse_http(text: &str) -> Result<SocketAddr, &'static str> {
    parse_address(text, Ipv4Addr::LOCALHOST.into())
        .ok_or("write ADDRESS:PORT, for example 127.0.0.1:8470, or only a port")
}

fn parse_at(text: &str) -> Result<StartTime, String> {
    StartTime::parse(text, Moment::now())
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<JobsCommand>,
    /// Also list jobs that ended earlier
    #[arg(long)]
    pub(crate) all: bool,
    /// List only jobs in these states, for example failed,expired
    ///
    /// An unfinished job is waiting, queued, running or paused. A finished job is done, failed, cancelled or expired.
    #[arg(long, value_name = "STATE,...", value_delimiter = ',')]
    pub(crate) state: Vec<State>,
    /// Print the jobs as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Back up the list of jobs to a new file
    Backup {
        /// Path of the new file
        file: PathBuf,
    },
    /// Forget jobs that ended long ago, and remove their logs
    Clean {
        /// Minimum time since the end of the job: 90s, 30min, 12h, 7d, 2w
        #[arg(long, value_name = "AGE", default_value = "30d")]
        older_than: Age,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// The job's number, printed by 'zmove submit'
    pub(crate) id: JobId,
    /// Print JSON, with 'log' one object per event
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) action: Option<JobAction>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobAction {
    /// Show the job's events and the output of its processes
    Log,
    /// Wait until the job ends; exit code 0 done, 30 failed, 31 cancelled, 32 expired, 33 timed out
    Wait {
        /// Maximum time to wait: 90 or 90s, 30min, 12h, 7d
        #[arg(long, value_name = "TIME")]
        timeout: Option<Timeout>,
    },
    /// Show the job's progress until it ends; exit codes as for 'wait'
    ///
    /// Ctrl-C leaves the job running.
    Attach,
    /// Pause the job; it continues from the data at the target when resumed
    Pause,
    /// Resume the job
    Resume,
    /// Cancel the job and its schedule; data at the target stays
    Cancel,
    /// Submit the same transfer as a new job
    Rerun,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunnerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RunnerCommand>,
    /// Maximum number of running jobs
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) max: usize,
    /// Maximum number of running jobs per remote host
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) max_per_host: usize,
    /// Maximum number of running jobs per target [default: no limit]
    #[arg(long, value_name = "N")]
    pub(crate) max_per_target: Option<usize>,
    /// Maximum number of running jobs per key [default: no limit]
    ///
    /// Each ZMOVE_HOME has one key.
    #[arg(long, value_name = "N")]
    pub(crate) max_per_key: Option<usize>,
    /// Exit after being idle for this long: 10min, 1h
    #[arg(long, value_name = "TIME")]
    pub(crate) until_idle: Option<Age>,
    /// Serve the web page and the API
    ///
    /// The runner listens on the socket 'api.sock' in the jobs directory. With ADDRESS, a loopback address or a port of
    /// 127.0.0.1, it also serves anyone there who has the token in the file 'token' of that directory. Other hosts
    /// reach it through ssh or a reverse proxy.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, conflicts_with = "detached", value_parser = parse_http)]
    pub(crate) http: Option<Option<SocketAddr>>,
    /// Name of the reverse proxy in front of the '--http' address
    ///
    /// The proxy runs on this host and speaks TLS with its clients. Write NAME:PORT if its port is not 443.
    /// OPERATIONS.md has examples for nginx and Caddy.
    #[arg(long, value_name = "NAME", requires = "http", hide_short_help = true)]
    pub(crate) http_name: Option<PublicName>,
    /// Detach from the terminal, and exit silently if another runner exists
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunnerCommand {
    /// Send a test event to the hook and webhook of notify.toml
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
