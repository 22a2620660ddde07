//! How another host is reached: the options of `push` and `probe` as the engine takes them.

use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{Confirm, Remote, SshSettings, UnknownHost};
use zmove_transport::{QuicCongestion, Reach, SocketConfig, TransportChoice, UnknownCongestion};

use crate::args::{SshArgs, TransportArg};
use crate::value::exit::usage_error;

/// The transport that was typed.
pub(super) fn transport(arg: TransportArg) -> TransportChoice {
    match arg {
        TransportArg::Auto => TransportChoice::Auto,
        TransportArg::Tcp => TransportChoice::Tcp,
        TransportArg::Quic => TransportChoice::Quic,
    }
}

/// The socket options that go with the congestion control that was typed.
pub(super) fn reach(transport: TransportChoice, congestion: Option<&str>) -> Result<Reach> {
    let quic_congestion = match congestion {
        // what only the kernel has is for TCP
        Some(name) if transport == TransportChoice::Quic => name
            .parse()
            .map_err(|error: UnknownCongestion| usage_error(format!("--congestion {name}: {error}")))?,
        Some(name) => name.parse().unwrap_or_default(),
        None => QuicCongestion::default(),
    };
    let socket = SocketConfig { congestion: congestion.map(str::to_owned), ..SocketConfig::default() };
    Ok(Reach { transport, socket, quic_congestion })
}

/// The ssh that starts a receiver at `remote`; without a login there, none will.
pub(super) fn ssh(args: &SshArgs, remote: &Remote) -> Result<SshSettings> {
    let mut words = shlex::split(&args.ssh_command).unwrap_or_default();
    if words.is_empty() && remote.login.is_some() {
        return Err(usage_error(format!("--ssh-command: '{}' is no command", args.ssh_command)));
    }
    let program = if words.is_empty() { String::new() } else { words.remove(0) };
    Ok(SshSettings {
        program,
        arguments: words,
        remote_zmove: args.remote_zmove.clone(),
        ports: args.ssh_ports,
    })
}

/// What becomes of a host whose key is not known; clap lets only one of the options through.
pub(super) fn unknown_host(accept_new: bool, strict: bool, ask: Arc<dyn Confirm>) -> UnknownHost {
    match (accept_new, strict) {
        (true, _) => UnknownHost::Pin,
        (false, true) => UnknownHost::Refuse,
        (false, false) => UnknownHost::Ask(ask),
    }
}
