//! `zmove runner --http`: the page and the API, on threads beside the runner's.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::runtime::Builder;
use zmove_api::{
    Api, Host, Reminders, Tls, TlsFiles, Token, bind_tcp, bind_tls, bind_unix, socket,
};
use zmove_jobs::{Moment, Place, THIS_PROGRAM};

use super::options;
use crate::args::{ControlArgs, RunnerArgs};
use crate::commands::operate;
use crate::display::terminal;
use crate::runtime;
use crate::value::control::{Answer, Request};
use crate::value::exit::usage_error;
use crate::value::version::VERSION;

/// Serves the page and the API until the process ends. To be called while it has one thread.
pub(super) fn serve(place: &Place, address: Option<SocketAddr>, args: &RunnerArgs) -> Result<()> {
    let files = files(args);
    if files.is_some() && address.is_none() {
        return Err(usage_error("'--http-cert' needs '--http' with an address"));
    }
    if args.http_name.is_some() && address.is_none() {
        return Err(usage_error("'--http-name' needs '--http' with an address"));
    }
    let tls = files
        .map(|files| Tls::read(&files).map(|tls| (tls, files)))
        .transpose()?;
    let reminders = tls.as_ref().map(|(tls, _)| tls.reminders());
    let mut doors = vec![bind_unix(place)?];
    terminal::say(format_args!("the API is at '{}'", socket(place).display()));
    if let (Some(address), Some((tls, files))) = (address, tls) {
        let (door, address) = bind_tls(address, tls)?;
        doors.push(door);
        terminal::say(format_args!(
            "the page is at {address}, over https and by a name of its certificate, for who has one of the authority \
             in '{}'",
            files.client_authority.display()
        ));
    } else if let Some(address) = address {
        let file = place.path().join("token");
        let (door, address) = bind_tcp(address, Token::renewed(&file)?, args.http_name.clone())?;
        doors.push(door);
        terminal::say(format_args!(
            "the page is at http://{address}/, for who has the word in '{}'",
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
    // One thread does all but what waits for storage.
    let runtime = runtime::build(Builder::new_multi_thread().max_blocking_threads(8), 1)?;
    let serve = move || {
        if let Some(reminders) = reminders {
            runtime.spawn(remind(reminders));
        }
        if let Err(error) = runtime.block_on(zmove_api::serve(api, doors)) {
            terminal::warn(format_args!("the API is not served any more: {error}"));
        }
    };
    std::thread::Builder::new()
        .name("api".to_owned())
        .spawn(serve)
        .context("start a thread")?;
    Ok(())
}

/// Says what there is to be said of certificates, for ever.
async fn remind(mut reminders: Reminders) {
    loop {
        reminders
            .due(Moment::now())
            .into_iter()
            .for_each(terminal::warn);
        tokio::time::sleep(REMINDERS_INTERVAL).await;
    }
}

/// The files for TLS, of which all are named or none.
fn files(args: &RunnerArgs) -> Option<TlsFiles<'_>> {
    Some(TlsFiles {
        certificate: args.http_cert.as_deref()?,
        key: args.http_key.as_deref()?,
        client_authority: args.http_client_ca.as_deref()?,
    })
}

fn version() -> String {
    VERSION.split(", ").next().unwrap_or_default().to_owned()
}

fn daemon() -> Result<Value, String> {
    match operate::ask(&ControlArgs { socket: None }, &Request::Status) {
        Ok(Answer::Status(status)) => {
            serde_json::to_value(status).map_err(|error| error.to_string())
        }
        Ok(_) => Err("the daemon is of another release".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// How often it is looked whether the time of a certificate ends.
const REMINDERS_INTERVAL: Duration = Duration::from_secs(60 * 60);
