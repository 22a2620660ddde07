//! The socket on which an operator of this host shows and stops transfers: `zmove status`, `stop` and `drain`.
//!
//! **Invariant:** only the daemon's user and root can connect, because the socket has mode 0600 from its creation.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;
use zmove_daemon::{StopReason, TransferStatus, Transfers};
use zmove_jobs::Moment;
use zmove_transport::Fingerprint;

use super::connections::serve_each;
use super::service;
use crate::display::log;
use crate::value::control::{Answer, DaemonStatus, REQUEST_BYTES_MAX, Removed, Request, SCHEMA};
use crate::value::version::VERSION;

/// The state of the daemon that the operator's requests read and change.
#[derive(Debug)]
pub(super) struct Control {
    transfers: Arc<Transfers>,
    key: Fingerprint,
    listen: String,
    since: u64,
    draining: AtomicBool,
    drain: Notify,
}

impl Control {
    pub(super) fn new(transfers: Arc<Transfers>, key: Fingerprint, listen: String) -> Arc<Self> {
        Arc::new(Self {
            transfers,
            key,
            listen,
            since: Moment::now().seconds().unsigned_abs(),
            draining: AtomicBool::new(false),
            drain: Notify::new(),
        })
    }

    /// Resolves when the operator asks the daemon to refuse new transfers and to exit after the last one.
    pub(super) async fn drains(&self) {
        self.drain.notified().await;
    }

    /// Serves the socket forever.
    pub(super) async fn serve(self: Arc<Self>, listener: tokio::net::UnixListener) {
        let accept =
            |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(socket, _)| socket);
        let converse = |socket| {
            let control = Arc::clone(&self);
            async move { control.converse(socket).await }
        };
        serve_each(accept, converse).await;
    }

    async fn converse(&self, socket: tokio::net::UnixStream) -> io::Result<()> {
        let (reader, mut writer) = socket.into_split();
        let mut line = String::new();
        BufReader::new(reader.take(REQUEST_BYTES_MAX))
            .read_line(&mut line)
            .await?;
        let answer = match serde_json::from_str(&line) {
            Ok(request) => self.answer(request),
            Err(error) => Answer::Nonsense(error.to_string()),
        };
        let mut words = serde_json::to_vec(&answer)?;
        words.push(b'\n');
        let said = async {
            writer.write_all(&words).await?;
            writer.shutdown().await
        };
        let said = said.await;
        // The response must be sent first, because an idle daemon exits immediately.
        if matches!(answer, Answer::Draining(_)) {
            self.drain.notify_one();
        }
        said
    }

    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status => Answer::Status(self.status()),
            Request::Stop(digits) => {
                let fits = |status: &TransferStatus| status.id.starts_with(&digits);
                let found: Vec<_> = self.transfers.list().into_iter().filter(fits).collect();
                if found.len() > 1 {
                    return Answer::Ambiguous(found);
                }
                self.end(StopReason::ByOperator, fits)
            }
            Request::EndKeys(removed) => self.end(StopReason::KeyRemoved, |status| {
                removed.iter().any(|removed| is_of(status, removed))
            }),
            Request::Drain => {
                self.draining.store(true, Ordering::Relaxed);
                Answer::Draining(self.transfers.read().transfers)
            }
        }
    }

    fn end(&self, cut: StopReason, which: impl Fn(&TransferStatus) -> bool) -> Answer {
        let ended = self.transfers.end(cut, which);
        for TransferStatus { id, name, .. } in &ended {
            log::note(format_args!("the operator ends transfer {id} of {name}"));
        }
        Answer::Ended(ended)
    }

    fn status(&self) -> DaemonStatus {
        DaemonStatus {
            schema: SCHEMA,
            version: VERSION.split(", ").next().unwrap_or_default().to_owned(),
            pid: std::process::id(),
            key: self.key.to_string(),
            listen: self.listen.clone(),
            since: self.since,
            draining: self.draining.load(Ordering::Relaxed),
            transfers: self.transfers.list(),
        }
    }
}

/// Returns whether a transfer belongs to a removed key, or was authorized by a grant of that key.
fn is_of(status: &TransferStatus, removed: &Removed) -> bool {
    let is_removed = |name: &String, key: &String| match &removed.key {
        Some(removed) => key == removed,
        None => *name == removed.name,
    };
    let granter = status.granter.as_ref();
    is_removed(&status.name, &status.key)
        || granter.is_some_and(|granter| is_removed(&granter.name, &granter.key))
}

/// Waits until no transfer is running. During the wait, reports the number of running transfers to the service manager.
pub(super) async fn drained(transfers: &Transfers, idle: impl Future<Output = ()>) {
    let telling = async {
        loop {
            let running = transfers.read().transfers;
            service::status(&format!("draining: {running} under way"));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    tokio::select! {
        () = idle => {}
        () = telling => {}
    }
}
