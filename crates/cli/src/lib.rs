//! The command line of zmove: arguments (`args`), the settings derived from them (`settings`), and output (`display`).
//!
//! Only this crate has exit codes, prompts and progress bars. The libraries report events and errors.

#![warn(clippy::print_stdout)]

mod args;
mod commands;
mod display;
#[doc(hidden)]
pub mod fuzzing;
mod ownership;
mod saved_sweeps;
mod settings;
mod silent_paths;
mod value;

use std::ffi::{OsStr, OsString};
use std::time::Instant;

use anyhow::Result;
use zmove_engine::OnInterrupt;
use zmove_far::runtime;
use zmove_types::Escaped;

use args::{Args, AsUserArgs, Command, SubmitArgs, asks_for_events};
use commands::{
    allow, clean, cluster, copy, derived, doctor, job, jobs, journal, key, operate, probe, pull,
    push, receive, runner, scan, serve, submit, sweep, trace, trust, verify,
};
use display::{failures, output, terminal};
use value::exit::{self, Exit};

/// Runs the command line and ends the process.
pub fn main() -> ! {
    let started = Instant::now();
    let words: Vec<_> = std::env::args_os().collect();
    // Parsing the command line needs more stack than the lowest possible limits allow.
    let code = match runtime::require_memory() {
        Ok(()) => run(words, started),
        Err(error) => fail(&error, asks_for_events(&words)),
    };
    let code = match output::end() {
        Ok(()) => code,
        Err(error) => {
            terminal::warn(format_args!("write the output: {error}"));
            // If the command itself has failed, its exit code is more important than a failure of standard output.
            if code == u8::from(Exit::Done) {
                Exit::File.into()
            } else {
                code
            }
        }
    };
    // Threads may still run, for example one that dials by QUIC. The TLS library's destructor makes the library abort
    // the process as soon as a thread requests its first random numbers, so no destructor may run.
    zmove_uring::exit_without_destructors(code)
}

/// Runs a command and returns the exit code.
fn run(words: Vec<OsString>, started: Instant) -> u8 {
    let asks_for_events = asks_for_events(&words);
    let args = match Args::read(words) {
        Ok(args) => args,
        Err(error) => {
            if asks_for_events && error.use_stderr() {
                failures::print_end(&exit::parse_error(&error), Exit::Usage);
            }
            return exit::usage(error).into();
        }
    };
    let is_json = args.command.prints_events();
    let files = settings::hosts_that_are_files(args.command.paths());
    let done = match ownership::settle(&args.command) {
        Ok(Some(code)) => return code,
        Ok(None) => run_here(args.command, started),
        Err(error) => Err(error),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let code = fail(&error, is_json);
            if matches!(Exit::of(&error), Exit::Connection | Exit::Authentication) {
                files.iter().for_each(|path| hint_at_file(path));
            }
            code
        }
    }
}

/// Explains to the user how to name a file whose name was parsed as a host. The user may also have meant the host.
fn hint_at_file(path: &OsStr) {
    let path = Escaped::path(path);
    terminal::warn(format_args!(
        "'{path}' was read as a path on another host: for the file with this name on this host write './{path}'"
    ));
}

/// Reports an error that ends the command, and returns its exit code.
fn fail(error: &anyhow::Error, is_json: bool) -> u8 {
    terminal::warn(terminal::causes(error));
    let exit = Exit::of(error);
    if is_json {
        failures::print_end(error, exit);
    }
    exit.into()
}

fn run_here(command: Command, started: Instant) -> Result<u8> {
    settings::prepare_process();
    let done = match command {
        Command::AsUser(args) => {
            return ownership::run_as(args, |AsUserArgs { words, .. }| {
                run(
                    [OsString::from("zmove")].into_iter().chain(words).collect(),
                    started,
                )
            });
        }
        Command::AskDaemon { socket } => operate::forward_request(&socket),
        Command::Push(args) => push::run(*args, started),
        Command::Pull(args) => pull::run(*args, started),
        Command::Copy(args) if args.detach => submit::run(SubmitArgs::of(*args)),
        Command::Copy(args) => copy::run(*args, started, OnInterrupt::Continue),
        Command::Result(args) => copy::result(&args),
        Command::Verify(args) => verify::run(*args, started),
        Command::Clean(args) => clean::run(&args),
        Command::Serve(args) => return serve::run(args),
        Command::Status(args) => operate::status(&args),
        Command::Stop(args) => operate::stop(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Cluster(command) => cluster::run(command),
        Command::Submit(args) => submit::run(*args),
        Command::Jobs(args) => jobs::run(&args),
        Command::Job(args) => job::run(&args),
        Command::Runner(args) => runner::run(&args),
        Command::RunJob(args) => runner::run_job(*args, started),
        Command::Look { paths } => silent_paths::look(paths),
        Command::Lane { port } => zmove_far::lane::connect(port).map(|()| Exit::Done),
        Command::Receive => receive::run(),
        Command::Key(command) => key::run(&command),
        Command::Trust(args) => trust::run(&args),
        Command::Allow(args) => allow::run(args),
        Command::Scan(args) => scan::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Journal(command) => journal::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Probe(args) => probe::run(&args, started),
        Command::Completions { shell } => Ok(derived::completions(shell)),
        Command::Man { directory } => derived::manual(&directory),
    };
    done.map(Exit::into)
}
