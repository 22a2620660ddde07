//! `zmove cluster`: creates a cluster, joins one, or shows its nodes.

mod member;
mod part;
pub(crate) mod sources;
mod status;

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FileType, Mode};
use zmove_cluster::jetstream::{ARGUMENTS, LocalBroker, program};
use zmove_engine::Remote;
use zmove_transport::Identity;
use zmove_types::Escaped;

use crate::args::{ClusterCommand, ClusterInitArgs};
use crate::commands::doctor::link::source;
use crate::commands::shared_job::threads;
use crate::commands::trust::key_of;
use crate::display::terminal;
use crate::ownership::end_with;
use crate::settings;
use crate::settings::cluster::{Cluster, ClusterReceiver, write_new};
use crate::value::exit::{Exit, usage_error};

/// Runs `zmove cluster`.
pub(crate) fn run(command: ClusterCommand) -> Result<Exit> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Invite { name, output } => invite(&name, output.as_deref()),
        ClusterCommand::Join(args) => join(&args.invitation),
        ClusterCommand::Status(args) => status::status(&args),
        ClusterCommand::Broker { parent } => become_broker(parent),
    }
}

fn init(args: ClusterInitArgs) -> Result<Exit> {
    let mut cluster = Cluster::new(&args.name)?;
    set_broker(&mut cluster, &args)?;
    settings::refuse_twice(args.receivers.iter())?;
    let keys = args.receivers.iter();
    let keys = keys.map(|remote| key_of(remote, args.accept_new));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    settings::refuse_same_key(args.receivers.iter().zip(keys.iter().copied()))?;
    for (Remote { host, port, .. }, key) in args.receivers.into_iter().zip(keys) {
        let key = key.to_string();
        cluster.receivers.push(ClusterReceiver { host, port, key });
    }
    cluster.save()?;
    let key = Identity::load_or_create(&settings::home(settings::Role::Client)?)?.fingerprint();
    let Cluster { name, broker, .. } = &cluster;
    let next = format!(
        "cluster {name}, broker {broker}\n\
         at each receiver, for the key of this node alone:\n  \
         zmove allow {key} --name NAME --root DIR --write --lead\n\
         for all other nodes, here and there:\n  \
         zmove cluster invite {name} -o FILE\n  \
         zmove cluster join FILE\n\
         to send:\n  \
         zmove push --cluster {name} SRC... PATH"
    );
    next.lines().for_each(terminal::say);
    Ok(Exit::Done)
}

/// Sets the broker of a cluster. Refuses a broker that cannot be used.
fn set_broker(cluster: &mut Cluster, args: &ClusterInitArgs) -> Result<()> {
    if let Some(urls) = &args.nats {
        let file = |path: &Option<_>| path.as_deref().map(read).transpose();
        cluster.broker.clone_from(urls);
        cluster.credentials = file(&args.nats_credentials)?;
        cluster.authorities = file(&args.nats_ca)?;
    } else {
        let address = match args.local.flatten() {
            Some(address) => address,
            None => own_address(&args.receivers[0])?,
        };
        let refused =
            |why: &dyn std::fmt::Display| usage_error(format!("--local {address}: {why}"));
        if address.ip().is_unspecified() {
            return Err(refused(&"the other nodes need an address of this host"));
        }
        match TcpListener::bind(address) {
            // If the address is in use, the broker of another cluster may be listening at it.
            Err(error) if error.kind() != ErrorKind::AddrInUse => return Err(refused(&error)),
            _ => {}
        }
        cluster.broker = format!("nats://{address}");
        cluster.local = Some(address);
        cluster.credentials = Some(LocalBroker::new_seed().context("make an nkey")?);
    }
    let checked = cluster.access().check();
    checked.map_err(|error| usage_error(format!("the broker {}: {error}", cluster.broker)))
}

/// Returns the address from which this host reaches a receiver, with the port of NATS.
fn own_address(receiver: &Remote) -> Result<SocketAddr> {
    let host = &receiver.host;
    let fails = || format!("find the address of this host towards {host}");
    let there = (host.as_str(), receiver.port).to_socket_addrs();
    let there = there.with_context(fails)?.next();
    let own = there.and_then(|there| source(there.ip()));
    Ok(SocketAddr::new(own.with_context(fails)?, NATS_PORT))
}

fn invite(name: &str, output: Option<&Path>) -> Result<Exit> {
    let invitation = Cluster::load(name)?.invitation()?;
    let Some(output) = output else {
        if is_for_others(std::io::stdout()) {
            terminal::warn("other users can read the output file: use -o FILE");
        }
        invitation.lines().for_each(terminal::say);
        return Ok(Exit::Done);
    };
    if output.symlink_metadata().is_ok() {
        return Err(usage_error(format!(
            "the file '{}' already exists",
            output.display()
        )));
    }
    write_new(output, &invitation)?;
    Ok(Exit::Done)
}

/// Returns whether users other than the owner may read a file. A pipe counts as private, because only the processes at
/// its ends can access it.
fn is_for_others(open: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(open) else {
        return false;
    };
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && Mode::from_raw_mode(stat.st_mode).intersects(Mode::RGRP | Mode::ROTH)
}

fn read(path: &Path) -> Result<String> {
    let shown = Escaped::path(path);
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(usage_error(format!("file '{shown}' does not exist")))
        }
        read => read.with_context(|| format!("read '{shown}'")),
    }
}

/// Reads an invitation. Only the owner of the file may be able to read it.
fn read_invitation(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin()).context("read standard input");
    }
    let shown = Escaped::path(path);
    if File::open(path).is_ok_and(is_for_others) {
        return Err(usage_error(format!(
            "others can read '{shown}' and join the cluster with it: if no one has, run 'chmod 600 {shown}'"
        )));
    }
    read(path)
}

fn join(invitation: &Path) -> Result<Exit> {
    let name = invitation
        .to_str()
        .filter(|name| !name.contains(['/', '.']) && *name != "-");
    let cluster = match name {
        Some(name) if !invitation.exists() => Cluster::load(name)?,
        _ => Cluster::join(&read_invitation(invitation)?)
            .with_context(|| format!("read '{}'", invitation.display()))?,
    };
    settings::block_on(threads(), member::take_part(&cluster))
}

/// Becomes the broker of the push that started this process, and exits when that push exits.
fn become_broker(push: u32) -> Result<Exit> {
    end_with(push)?;
    let error = program().args(ARGUMENTS).exec();
    Err(error).context("start nats-server (Debian's package of that name has it)")
}

const NATS_PORT: u16 = 4222;
