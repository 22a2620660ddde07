//! The part of a node in a job which another node leads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use zmove_cluster::Lead;
use zmove_cluster::jetstream::{JetStream, JobNotice, NodeMoved, Role, Settings};
use zmove_engine::NoListener;
use zmove_types::{Event, Observer};

use crate::args::{Args, Command, PushArgs};
use crate::commands::{cluster_push, spread};
use crate::display::prompt::Prompt;
use crate::display::terminal;
use crate::settings::PushSettings;
use crate::settings::cluster::Cluster;

/// The part of a node in a job.
pub(super) struct Part {
    seen: Arc<Seen>,
}

/// What is done for it.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What the events of a part have said.
#[derive(Default)]
struct Seen {
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    skipped_files: AtomicU64,
    skipped_bytes: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Part {
    /// Begins as the node of this number.
    pub(super) async fn begin(cluster: &Cluster, notice: &JobNotice, number: u32) -> Result<(Self, Work)> {
        let settings = PushSettings::of_node(words(notice)?, cluster.clone(), Arc::new(Prompt))?;
        let sources = settings.look_at_sources(&NoListener)?;
        let job = spread::job(&settings, &sources, (notice.id(), notice.epoch))?;
        let receivers = cluster_push::receivers(&settings, cluster)?;
        let key = cluster.key()?.of_job(job.id);
        let queue = Settings::new(Role::Mover, job.id, job.epoch, key);
        let queue = JetStream::open(&cluster.access()?, queue).await?;
        let number = usize::try_from(number)?;
        let patience: Duration = settings.args.timeout.0;
        let seen = Arc::new(Seen::default());
        let observer = Arc::clone(&seen) as Arc<dyn Observer>;
        let work = async move {
            let lead = Lead::new((job, Arc::new(queue)), receivers, 1, patience);
            Ok(lead.take_part(number, observer, Arc::new(spread::Notices)).await?)
        };
        Ok((Self { seen }, Box::pin(work)))
    }

    /// What the node has found and moved.
    pub(super) fn moved(&self) -> NodeMoved {
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let seen = &self.seen;
        NodeMoved {
            found_files: number(&seen.found_files),
            found_bytes: number(&seen.found_bytes),
            files: number(&seen.files),
            bytes: number(&seen.bytes),
            skipped_files: number(&seen.skipped_files),
            skipped_bytes: number(&seen.skipped_bytes),
        }
    }

    /// What has failed since this was asked last.
    pub(super) fn failures(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Seen {
    fn on(&self, event: &Event) {
        let add = |count: &AtomicU64, more: u64| count.fetch_add(more, Ordering::Relaxed);
        match event {
            Event::Found { files, bytes } => {
                add(&self.found_files, *files);
                add(&self.found_bytes, *bytes);
            }
            Event::Stored { files, bytes } => {
                add(&self.files, *files);
                add(&self.bytes, *bytes);
            }
            Event::Skipped { files, bytes } => {
                add(&self.skipped_files, *files);
                // those of large files are groups, or holes
                add(&self.skipped_bytes, if *files > 0 { *bytes } else { 0 });
            }
            Event::Failed { message } => {
                terminal::warn(message);
                let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                if failures.len() < FAILURES_MAX {
                    failures.push(message.clone());
                }
            }
            Event::Warned { message } => terminal::warn(message),
            _ => {}
        }
    }
}

/// What was typed at the head, its sources as paths that do not depend on a directory.
fn words(notice: &JobNotice) -> Result<PushArgs> {
    let typed = notice.words.iter().cloned().map(OsString::from_vec);
    let mut args = match Args::read(std::iter::once("zmove".into()).chain(typed).collect())?.command {
        Command::Push(args) => *args,
        Command::RunJob(args) => args.copy.push,
        _ => bail!("the job is no push"),
    };
    let directory = PathBuf::from(OsString::from_vec(notice.directory.clone()));
    let (_target, sources) = args.paths.split_last_mut().expect("two are demanded");
    sources.iter_mut().for_each(|source| *source = directory.join(&*source).into_os_string());
    Ok(args)
}

/// The most failures that are told at a time.
const FAILURES_MAX: usize = 100;
