//! `zmove trust`: manages the keys of receivers. This module also has the functions with which other commands pin a
//! key.
//!
//! **Invariant:** a key is stored only after its holder has signed a handshake with it, or before a connection that
//! demands this signature.

use anyhow::{Context, Result};
use serde_json::json;
use zmove_engine::{DIAL_TIMEOUT, Remote};
use zmove_transport::{
    ChannelDialer, DialOptions, Fingerprint, FirstKey, HostAuthority, HostPolicy, Identity,
    KnownHosts,
};

use crate::args::{TrustArgs, TrustCommand, TrustHostArgs};
use crate::display::prompt::ask;
use crate::display::terminal;
use crate::settings;
use crate::value::exit::{Exit, failure, usage_error};

/// Runs `zmove trust`.
pub(crate) fn run(args: &TrustArgs) -> Result<Exit> {
    let home = settings::home(settings::Role::Client)?;
    let known_hosts = KnownHosts::open(&home)?;
    match (&args.command, &args.host) {
        (Some(TrustCommand::List { json }), _) => {
            let pins = known_hosts.pins();
            for (host, key) in &pins {
                let line = json!({ "host": host, "key": key.to_string() });
                terminal::say(if *json {
                    line.to_string()
                } else {
                    format!("{host} {key}")
                });
            }
            if pins.is_empty() && !json {
                terminal::say("no known hosts");
            }
            Ok(Exit::Done)
        }
        (Some(TrustCommand::Remove { host }), _) => remove(host, known_hosts),
        (None, Some(args)) => {
            let identity = Identity::load_or_create(&home)?;
            settings::block_on(1, learn(args, &identity, known_hosts))
        }
        (None, None) => unreachable!("clap demands one of them"),
    }
}

fn remove(host: &Remote, mut known_hosts: KnownHosts) -> Result<Exit> {
    let Some(key) = known_hosts.remove(&host.host, host.port)? else {
        let text = format!("no key of {host} is pinned: see 'zmove trust list'");
        return Err(usage_error(text));
    };
    terminal::say(format_args!("removed {host}; its key was {key}"));
    Ok(Exit::Done)
}

/// Fetches the key of a host. The host proves with a signature that it holds the key. If a `known` key is given, the
/// host must have that key.
pub(crate) async fn fetch(
    host: &Remote,
    identity: &Identity,
    known: Option<Fingerprint>,
) -> Result<Fingerprint> {
    let policy = known.map_or_else(
        || HostPolicy::AcceptNew(FirstKey::default()),
        HostPolicy::Pinned,
    );
    let dialer = ChannelDialer::new(
        identity,
        &host.host,
        host.port,
        policy,
        DialOptions::default(),
    )
    .await?;
    let key = dialer.dial(DIAL_TIMEOUT).await?.peer();
    dialer.close().await;
    Ok(key)
}

/// Fetches the key of a host, and stores the key if it is the expected one. The host proves with a signature that it
/// holds the key.
async fn learn(
    args: &TrustHostArgs,
    identity: &Identity,
    mut known_hosts: KnownHosts,
) -> Result<Exit> {
    let host = &args.host;
    let known = known_hosts.lookup(&host.host, host.port);
    let key = fetch(host, identity, known).await?;
    if let Some(right) = args.fingerprint.filter(|right| *right != key) {
        let text = format!(
            "verify the key of {host}: it is {key}, not {right}; ask its administrator which is right"
        );
        return Err(failure(Exit::Authentication, text));
    }
    if known.is_some() {
        terminal::say(format_args!("{host} is already known with this key: {key}"));
        return Ok(Exit::Done);
    }
    if args.fingerprint.is_none() && !args.accept_new {
        let otherwise = "run again with --fingerprint and that key, or with --accept-new";
        let host = host.clone();
        // The prompt runs on a separate thread, so that this thread can handle interrupts.
        let asked = tokio::task::spawn_blocking(move || ask(&host, key, otherwise)).await;
        asked.context("read the answer")??;
    }
    known_hosts.pin(&host.host, host.port, key)?;
    terminal::say(format_args!("pinned the key of {host}: {key}"));
    Ok(Exit::Done)
}

/// Returns the key of a host. If the key was unknown, pins it.
pub(crate) fn key_of(host: &Remote, accept_new: bool) -> Result<Fingerprint> {
    let home = settings::home(settings::Role::Client)?;
    let mut known_hosts = KnownHosts::open(&home)?;
    if let Some(key) = known_hosts.lookup(&host.host, host.port) {
        return Ok(key);
    }
    let identity = Identity::load_or_create(&home)?;
    let key = settings::block_on(1, fetch(host, &identity, None))?;
    if !accept_new {
        ask(
            host,
            key,
            &format!("run 'zmove trust {host}' first, or add --accept-new"),
        )?;
    }
    known_hosts.pin(&host.host, host.port, key)?;
    Ok(key)
}

/// Makes sure that the key of a host is known. If the key is unknown, asks the user immediately.
pub(crate) fn ensure_known_key(host: &Remote, strict: bool) -> Result<()> {
    // For a host with a login, ssh checks the host key.
    if host.login.is_some() {
        return Ok(());
    }
    let home = settings::home(settings::Role::Client)?;
    let is_known = KnownHosts::open(&home)?
        .lookup(&host.host, host.port)
        .is_some();
    if is_known || HostAuthority::load(&home, &host.host)?.is_some() {
        return Ok(());
    }
    if strict {
        let text = format!(
            "the key of {host} is not known, and a job cannot ask: run 'zmove trust {host}'"
        );
        return Err(failure(Exit::Authentication, text));
    }
    key_of(host, false).map(drop)
}
