//! fpsync on the first sender. Its parts are copied by ssh workers, one on each sender, with rsync over ssh to one
//! host. The link of that host has the rate of the links of all senders together.

use std::fs;
use std::io::ErrorKind;
use std::process::{Child, Command};

use anyhow::{Context, Result, bail};

use super::stand::Stand;
use crate::measurements::peers::{self, SSH_PORT, Ssh};
use crate::processes::groups::Group;
use crate::processes::server;
use crate::processes::session::Session;

/// The servers of a run. Dropping this value ends the servers, and all processes that they and fpsync have started.
#[derive(Debug)]
pub(super) struct Workers {
    /// The control group of these processes only. It includes processes that a killed client leaves behind.
    pub(super) group: Group,
    servers: Vec<Child>,
}

/// Creates the keys and settings of the workers, once. Returns an error if a program is missing.
pub(super) fn prepare(session: &Session) -> Result<Ssh> {
    if let Some(missing) = peers::absent(&PROGRAMS) {
        bail!(
            "--methods fpsync cannot run: {missing} (Debian's packages: fpart, rsync, openssh-server)"
        );
    }
    let ssh = Ssh::new(session)?;
    ssh.prepare("")?;
    Ok(ssh)
}

/// Starts a server on each worker and on the receiving host. Returns the command of fpsync.
pub(super) fn start(
    stand: &Stand<'_>,
    ssh: &Ssh,
    session: &Session,
    [source, target]: [&str; 2],
) -> Result<(Workers, Command)> {
    let mut workers = Workers {
        group: Group::create(session.id(), "fpsync")?,
        servers: Vec::new(),
    };
    let senders = &stand.senders[..stand.nodes().min(WORKERS_MAX)];
    for node in senders.iter().chain([&stand.wide_receiver]) {
        let (program, arguments) = ssh.daemon();
        let mut daemon = stand.program(node, &workers.group, &program)?;
        daemon.args(arguments);
        let log = node.home.join("sshd.log");
        workers
            .servers
            .push(server::start(daemon, &node.host.namespace, SSH_PORT, &log)?);
    }
    let lists = stand.scratch.join("fpsync");
    match fs::remove_dir_all(&lists) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("failed to empty {}", lists.display()));
        }
        _nothing_left => {}
    }
    let mut fpsync = stand.program(&stand.senders[0], &workers.group, "fpsync")?;
    fpsync
        .env("PATH", ssh.path()?)
        .args(["-n", &senders.len().to_string()]);
    for sender in senders {
        fpsync.args(["-w", &format!("root@{}", sender.host.address)]);
    }
    fpsync
        .arg("-t")
        .arg(lists.join("queue"))
        .arg("-d")
        .arg(lists.join("shared"));
    fpsync
        .args(peers::FPSYNC_PARTS)
        .args(["-o", &rsync_options(ssh)]);
    fpsync.args([
        source,
        &format!("root@{}:{target}/", stand.wide_receiver.host.address),
    ]);
    Ok((workers, fpsync))
}

/// Returns the options of other fpsync copies, with ssh. The ssh command must not contain spaces, because fpsync does
/// not quote it.
fn rsync_options(ssh: &Ssh) -> String {
    format!("{} -e {}", peers::FPSYNC_OPTIONS, ssh.program().display())
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.group.kill();
        for server in &mut self.servers {
            let _ended = server.wait();
        }
    }
}

const PROGRAMS: [&str; 5] = ["fpsync", "fpart", "rsync", "ssh", "sshd"];
/// The number of workers that the documentation of [`Method::Fpsync`](super::Method) states.
pub(super) const WORKERS_MAX: usize = 8;
