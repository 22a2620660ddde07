//! The settings for connecting to another host, converted from the command line options.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{
    Confirm, ConfirmHelper, ConnectionMethod, DialSettings, FarHelper, Remote, SshSettings, Start,
    UnknownHost,
};
use zmove_transport::{
    DialOptions, QuicCongestion, SocketConfig, TransportChoice, UnknownCongestion,
};

use crate::args::{DialArgs, TransportArg, ViaArg};
use crate::display::helper_prompt::{AnnounceHelper, HelperPrompt};
use crate::value::exit::usage_error;

/// Returns how the receiver at a location without a login is started.
pub(crate) fn start(args: &DialArgs) -> Start {
    if args.ssh || args.ssh_command.is_some() || args.via == ViaArg::Ssh {
        Start::OverSsh
    } else {
        Start::Daemon
    }
}

/// Converts the options. `ask` confirms the key of an unknown host.
///
/// # Errors
/// Returns an error if an option has an invalid value.
pub(super) fn settings(
    args: &DialArgs,
    remote: &Remote,
    ask: Arc<dyn Confirm>,
) -> Result<DialSettings> {
    // clap accepts at most one of the two options.
    let unknown_host = match (args.accept_new, args.strict) {
        (true, _) => UnknownHost::Pin,
        (false, true) => UnknownHost::Refuse,
        (false, false) => UnknownHost::Ask(ask),
    };
    Ok(DialSettings {
        unknown_host,
        reach: reach(args)?,
        ssh: ssh(args, remote)?,
        ..DialSettings::default()
    })
}

/// Converts the transport option.
pub(super) const fn transport(transport: TransportArg) -> TransportChoice {
    match transport {
        TransportArg::Auto => TransportChoice::Auto,
        TransportArg::Tcp => TransportChoice::Tcp,
        TransportArg::Quic => TransportChoice::Quic,
    }
}

/// Returns the transport and the socket options.
fn reach(args: &DialArgs) -> Result<DialOptions> {
    let transport = transport(args.transport);
    let quic_congestion = match &args.congestion {
        // A congestion control that only the kernel provides applies to TCP, not to QUIC.
        Some(name) if transport == TransportChoice::Quic => {
            name.parse().map_err(|error: UnknownCongestion| {
                usage_error(format!("--congestion {name}: {error}"))
            })?
        }
        Some(name) => name.parse().unwrap_or_default(),
        None => QuicCongestion::default(),
    };
    let socket = SocketConfig {
        congestion: args.congestion.clone(),
        ..SocketConfig::default()
    };
    Ok(DialOptions {
        transport,
        socket,
        quic_congestion,
        ..DialOptions::default()
    })
}

/// Returns the ssh command that starts a receiver at `remote`. If `remote` has no login, the command is not used.
fn ssh(args: &DialArgs, remote: &Remote) -> Result<SshSettings> {
    let command = args.ssh_command.as_deref().unwrap_or("ssh");
    let mut words = shlex::split(command).unwrap_or_default().into_iter();
    let program = words.next();
    if program.is_none() && remote.login.is_some() {
        return Err(usage_error(format!(
            "--ssh-command: '{command}' is not a command"
        )));
    }
    if args.via == ViaArg::Ssh && args.transport == TransportArg::Quic {
        return Err(usage_error(
            "--via ssh cannot be used with --transport quic: ssh forwards only TCP",
        ));
    }
    let helper = helper(args);
    if args.bootstrap && helper.is_none() {
        return Err(usage_error(
            "--bootstrap: this installation has no helper: 'zmove-far' must be beside zmove, or in ../libexec/zmove, and \
             belong to you or root (.package/far builds it)",
        ));
    }
    Ok(SshSettings {
        program: program.unwrap_or_default(),
        arguments: words.collect(),
        remote_zmove: args.remote_zmove.clone(),
        helper,
        ports: args.ssh_ports,
        method: match args.via {
            ViaArg::Auto => ConnectionMethod::Auto,
            ViaArg::Direct => ConnectionMethod::Direct,
            ViaArg::Ssh => ConnectionMethod::Ssh,
        },
        socket_directory: std::env::var_os("XDG_RUNTIME_DIR").map(Into::into),
    })
}

/// Returns the helper program of this installation, if there is one.
fn helper(args: &DialArgs) -> Option<FarHelper> {
    let is_allowed =
        args.bootstrap || std::env::var_os("ZMOVE_BOOTSTRAP").is_some_and(|set| set == "yes");
    let consent: Arc<dyn ConfirmHelper> = if is_allowed {
        Arc::new(AnnounceHelper)
    } else {
        Arc::new(HelperPrompt)
    };
    let path = helper_of(&std::env::current_exe().ok()?)?;
    Some(FarHelper { path, consent })
}

/// Returns the helper beside a program or in its libexec directory.
fn helper_of(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    let places = [".", "../libexec/zmove"];
    let mut helpers = places
        .iter()
        .map(|place| directory.join(place).join("zmove-far"));
    helpers.find(|helper| is_own_file(helper))
}

/// Returns whether a path is a file of this user or of root. Anyone may put a file beside a program in `/tmp`.
fn is_own_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|file| {
        file.is_file() && [0, rustix::process::geteuid().as_raw()].contains(&file.uid())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_beside_the_program_or_in_libexec() {
        let home = tempfile::tempdir().unwrap();
        let create = |path: &str| {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        create("bin/zmove");
        let found =
            || helper_of(&home.path().join("bin/zmove")).map(|path| path.canonicalize().unwrap());
        let at = |path: &str| Some(home.path().canonicalize().unwrap().join(path));
        assert_eq!(found(), None);
        create("libexec/zmove/zmove-far");
        assert_eq!(found(), at("libexec/zmove/zmove-far"));
        create("bin/zmove-far");
        assert_eq!(found(), at("bin/zmove-far"));
    }
}
