//! The command line of zmove: what was typed (`args`), what will run (`settings`), and what the user sees.
//!
//! Only here are there exit codes, prompts and bars; the libraries report events and errors.

mod age;
mod allow;
mod args;
mod ceiling;
mod config;
mod dial;
mod doctor;
mod exit;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod key;
mod listing;
mod location;
mod log;
mod metrics;
mod overlap;
mod paths;
mod patience;
mod probe;
mod progress;
mod push;
mod receive;
mod reconnect;
mod scan;
mod selection;
mod serve;
mod service;
mod settings;
mod signals;
mod ssh;
mod summary;
mod sweep;
mod terminal;
mod trace;
mod trust;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use args::{Args, Command};
use exit::Exit;

/// Runs the command line and says how it went.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    settings::prepare_process();
    let done = match args.command {
        Command::Push(args) => push::run(args, started),
        Command::Serve(args) => serve::run(&args),
        Command::Receive => receive::run(),
        Command::Key(args) => key::run(&args),
        Command::Trust(args) => trust::run(&args),
        Command::Allow(args) => allow::run(args),
        Command::Scan(args) => scan::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Journal(args) => journal::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Probe(args) => probe::run(&args, started),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            terminal::warn(terminal::Causes(&error));
            Exit::of(&error).into()
        }
    }
}
