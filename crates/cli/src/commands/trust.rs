//! `zmove trust`: the keys of receivers, and how a push comes to trust one.
//!
//! **Invariant:** a key is remembered only after its holder has signed a handshake with it, or before the connection that
//! demands this signature.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;
use zmove_transport::{
    ChannelDialler, DialError, Fingerprint, FirstKey, HostAuthority, HostPolicy, Identity, KnownHosts, Reach,
};

use crate::args::{TrustArgs, TrustCommand, TrustHostArgs, TrustListArgs};
use crate::dial::{DIAL_TIMEOUT, DialOptions};
use crate::display::terminal;
use crate::location::Remote;
use crate::settings;
use crate::value::exit::{Exit, Failure};

/// Runs `zmove trust`.
pub(crate) fn run(args: &TrustArgs) -> Result<Exit> {
    let home = settings::home(settings::Role::Client)?;
    let known_hosts = KnownHosts::open(&home)?;
    match (&args.command, &args.host) {
        (Some(TrustCommand::List(args)), _) => Ok(list(args, &known_hosts)),
        (Some(TrustCommand::Remove(args)), _) => remove(&args.host, known_hosts),
        (None, Some(args)) => {
            let identity = Identity::load_or_create(&home)?;
            let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
            let done = runtime.block_on(learn(args, &identity, known_hosts));
            runtime.shutdown_background();
            done
        }
        (None, None) => unreachable!("clap demands one of them"),
    }
}

fn list(args: &TrustListArgs, known_hosts: &KnownHosts) -> Exit {
    let pins = known_hosts.pins();
    for (host, key) in &pins {
        if args.json {
            terminal::say(json!({ "host": host, "key": key.to_string() }));
        } else {
            terminal::say(format_args!("{host} {key}"));
        }
    }
    if pins.is_empty() && !args.json {
        terminal::say("no host is known");
    }
    Exit::Done
}

fn remove(host: &Remote, mut known_hosts: KnownHosts) -> Result<Exit> {
    let Some(key) = known_hosts.remove(&host.host, host.port)? else {
        return Err(Failure(Exit::File, format!("{host} is not known")).into());
    };
    terminal::say(format_args!("{host} is not known any more; its key was {key}"));
    Ok(Exit::Done)
}

/// Fetches a host's key, which the host proves by its signature, and remembers it if it is the right one.
async fn learn(args: &TrustHostArgs, identity: &Identity, mut known_hosts: KnownHosts) -> Result<Exit> {
    let host = &args.host;
    let known = known_hosts.lookup(&host.host, host.port);
    let first = FirstKey::default();
    let policy = known.map_or_else(|| HostPolicy::AcceptNew(first), HostPolicy::Pinned);
    let dialler = ChannelDialler::new(identity, &host.host, host.port, policy, Reach::default()).await?;
    let key = dialler.dial(DIAL_TIMEOUT).await?.peer();
    dialler.close().await;
    if let Some(right) = args.fingerprint.filter(|right| *right != key) {
        let text = format!("trust {host}: its key is {key}, not {right}");
        return Err(Failure(Exit::Authentication, text).into());
    }
    if known.is_some() {
        terminal::say(format_args!("{host} is known, and has the key that it had: {key}"));
        return Ok(Exit::Done);
    }
    if args.fingerprint.is_none() && !args.accept_new {
        let otherwise = "run again with --fingerprint and that line's key, or with --accept-new";
        ask(host, key, otherwise).await?;
    }
    known_hosts.pin(&host.host, host.port, key)?;
    terminal::say(format_args!("pinned the key of {host}: {key}"));
    Ok(Exit::Done)
}

/// Which key a push takes from a host: the pinned one, that of a host for which the site's authority vouches, or else what
/// the user says, as with ssh.
pub(crate) async fn host_policy(
    remote: &Remote,
    identity: &Identity,
    home: &Path,
    options: &DialOptions,
    first_key: &FirstKey,
) -> Result<HostPolicy> {
    let mut known_hosts = KnownHosts::open(home)?;
    if let Some(key) = known_hosts.lookup(&remote.host, remote.port) {
        return Ok(HostPolicy::Pinned(key));
    }
    let authority = HostAuthority::load(home, &remote.host)?;
    let accept_new = || HostPolicy::AcceptNew(first_key.clone());
    if options.accept_new && authority.is_none() {
        return Ok(accept_new());
    }
    let policy = authority.map_or(HostPolicy::RefuseUnknown, HostPolicy::Vouched);
    let reach = options.reach.clone();
    let dialler = ChannelDialler::new(identity, &remote.host, remote.port, policy, reach).await?;
    let fingerprint = match dialler.dial(DIAL_TIMEOUT).await {
        Err(DialError::UnknownHost { .. }) if options.accept_new => return Ok(accept_new()),
        Err(DialError::UnknownHost { fingerprint, .. }) if !options.strict => fingerprint,
        Err(error) => return Err(error.into()),
        Ok(vouched) => return Ok(HostPolicy::Pinned(vouched.peer())),
    };
    ask(remote, fingerprint, "run again with --accept-new").await?;
    known_hosts.pin(&remote.host, remote.port, fingerprint)?;
    Ok(HostPolicy::Pinned(fingerprint))
}

/// Returns when the user has said yes.
async fn ask(remote: &Remote, fingerprint: Fingerprint, otherwise: &str) -> Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let text = format!(
            "the key of {remote} is not known: {fingerprint}. If this is the line that 'zmove serve' prints there, \
             {otherwise}"
        );
        return Err(Failure(Exit::Authentication, text).into());
    }
    eprint!(
        "The receiver at {remote} is not known yet. Its key is\n  {fingerprint}\n\
         which should be the line that 'zmove serve' prints there. Go on and remember it (yes/no)? "
    );
    std::io::stderr().flush()?;
    // on a thread of its own, so that an interrupt is heard meanwhile
    let read = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    if read.await.context("read the answer")??.trim() != "yes" {
        return Err(Failure(Exit::Authentication, "the host's key was not accepted".into()).into());
    }
    Ok(())
}
