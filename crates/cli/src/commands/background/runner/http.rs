//! `zmove runner --http`: serves the web page and the API on additional threads of the runner.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::runtime::Builder;
use zmove_api::{Api, Host, Token, bind_tcp, bind_unix, socket};
use zmove_jobs::{JobsDirectory, THIS_PROGRAM};

use super::options;
use crate::args::{ControlArgs, RunnerArgs};
use crate::commands::operate;
use crate::display::terminal;
use crate::value::control::{Answer, Request};
use crate::value::exit::usage_error;
use crate::value::version::VERSION;
use zmove_far::runtime;

/// Starts to serve the web page and the API, until the process exits. Must be called while the process has only one
/// thread.
pub(super) fn serve(
    place: &JobsDirectory,
    address: Option<SocketAddr>,
    args: &RunnerArgs,
) -> Result<()> {
    if args.http_name.is_some() && address.is_none() {
        return Err(usage_error("'--http-name' needs '--http' with an address"));
    }
    let mut listeners = vec![bind_unix(place)?];
    terminal::say(format_args!("the API is at '{}'", socket(place).display()));
    if let Some(address) = address {
        let file = place.path().join("token");
        let token = Token::renewed(&file)?;
        let (listener, address) = bind_tcp(address, token, args.http_name.clone())?;
        listeners.push(listener);
        terminal::say(format_args!(
            "the page is at http://{address}/; its token is in '{}'",
            file.display()
        ));
    }
    let host = Host {
        program: THIS_PROGRAM.into(),
        options: options::of_submit().into(),
        version: version(),
        daemon,
    };
    let api = Api::new(place, host).context("start a thread")?;
    // One thread does all work except calls that block on storage.
    let runtime = runtime::build(Builder::new_multi_thread().max_blocking_threads(8), 1)?;
    let serve = move || {
        if let Err(error) = runtime.block_on(zmove_api::serve(api, listeners)) {
            terminal::warn(format_args!("the API stopped: {error}"));
        }
    };
    std::thread::Builder::new()
        .name("api".to_owned())
        .spawn(serve)
        .context("start a thread")?;
    Ok(())
}

fn version() -> String {
    VERSION.split(", ").next().unwrap_or_default().to_owned()
}

fn daemon() -> Result<Value, String> {
    match operate::ask(&ControlArgs { socket: None }, &Request::Status) {
        Ok(Answer::Status(status)) => {
            serde_json::to_value(status).map_err(|error| error.to_string())
        }
        Ok(_) => Err("the daemon is of a different release".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    }
}
