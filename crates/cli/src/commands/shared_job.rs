//! What pushes have in common in which several sessions share one job, by several receivers or nodes: the job that the
//! settings ask for, those of before that have to be ended first, and what is told at the end.

mod unended;

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use futures_util::stream::{self, StreamExt};
use zmove_cluster::{
    Abandoned, JobEnd, JobError, Receiver, SessionEnd, SharedJob, Told, end_abandoned,
};
use zmove_engine::{Listener, Notice, Sources, Summary, fresh_transfer};
use zmove_sender::{SenderConfig, SessionError};
use zmove_transport::SharedRate;
use zmove_types::{
    Beginning, ByteCount, ByteRate, Counters, Event, Kinds, NoObserver, Observer, SharedJobId,
};
use zmove_wire::{
    Durability, InTheWay, Keeping, NodeName, Open, RefusalCode, TargetShape, TopName,
};

pub(crate) use self::unended::Unended;
use crate::ceiling::Shares;
use crate::commands::transfer::{exit_of, interrupted, own_name, resumable};
use crate::display::format::counted;
use crate::display::progress::Display;
use crate::display::summary::{self, Ending, Sessions};
use crate::display::terminal;
use crate::settings::{self, PushSettings, Role};
use crate::value::exit::{Exit, failure};

/// What has become of a job that was led.
pub(crate) struct Led {
    pub(crate) id: SharedJobId,
    pub(crate) ended: Result<JobEnd, JobError>,
    /// How many nodes, or receivers, took part.
    pub(crate) served: usize,
    /// Whether sessions were lost before they had recorded all that they had moved.
    pub(crate) has_lost_sessions: bool,
}

/// The nodes, or receivers, that do a job together.
pub(crate) struct By {
    /// What each of them is.
    pub(crate) noun: &'static str,
    /// What each has moved, where there were several.
    pub(crate) took_part: Option<String>,
}

/// Prints what has become of a job.
pub(crate) fn tell_end(
    led: Led,
    by: &By,
    settings: &PushSettings,
    sources: &Sources,
    started: Instant,
) -> Result<Exit> {
    let args = &settings.args;
    let ended = led
        .ended
        .map_err(|error| resumable(as_failure(error), args))?;
    let mut summary = summary_of(&ended, started);
    summary.counters.failed += sources.missing;
    let exit = exit_of(&summary, args);
    let is_told = !args.json && !args.quiet;
    if is_told && summary.counters.files > 0 {
        terminal::print_lines(
            &(as_text(&summary, by, led.served) + &summary::extras(&summary, args)),
        );
    } else {
        let ending = Ending {
            exit,
            transfer: Some(led.id.to_string()),
            sessions: Sessions::Several,
        };
        summary::print(&summary, args, None, &Shares::default(), &ending);
    }
    if is_told && led.has_lost_sessions && summary.counters.skipped > 0 {
        terminal::print_lines(MOVED_BEFORE);
    }
    Ok(exit)
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get)
}

/// The id and the epoch of a job that begins now.
pub(crate) fn fresh() -> Result<(SharedJobId, u64)> {
    let id = SharedJobId(fresh_transfer().context("get random bytes")?.0);
    Ok((
        id,
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    ))
}

/// The same work as another job, which begins now.
pub(crate) fn anew(job: &SharedJob) -> Result<SharedJob> {
    let (id, epoch) = fresh()?;
    Ok(SharedJob {
        id,
        epoch,
        ..job.clone()
    })
}

/// Ends at the receivers the jobs that pushes of several have left at the target that is to be opened so; returns what
/// was noted of them, of some of which there may be a queue at a broker.
///
/// # Errors
/// The user stops it, or no receiver ends one of them.
pub(crate) fn end_before(
    open: &Open,
    receivers: &[Receiver],
    settings: &PushSettings,
    display: &Display,
) -> Result<Vec<Unended>> {
    let before = Unended::near(&settings::home(Role::Client)?, receivers)?;
    if before.is_empty() {
        return Ok(before);
    }
    let observer = Arc::new(Once {
        observer: display.observer(),
        told: Told::default(),
    });
    let ending = EndOfKilled {
        open,
        receivers,
        patience: settings.args.busy_timeout().0,
        observer,
    };
    settings::block_on(threads(), async {
        let telling = async {
            tokio::time::sleep(TOLD_AFTER).await;
            terminal::warn("first the job of a push that was killed is looked for, and ended");
            std::future::pending().await
        };
        tokio::select! {
            ended = Box::pin(ending.end_all(before)) => ended,
            never = telling => match never {},
            () = interrupted() => Err(as_failure(JobError::Interrupted { may_have_begun: true })),
        }
    })
}

/// Ends the same jobs for a push that knows no broker, and forgets what was noted of them, but for their queues.
///
/// # Errors
/// As [`end_before`], or a file cannot be removed.
pub(crate) fn end_and_forget(
    open: &Open,
    receivers: &[Receiver],
    settings: &PushSettings,
    display: &Display,
) -> Result<()> {
    end_before(open, receivers, settings, display)?
        .into_iter()
        .try_for_each(|unended| unended.ended(None))
}

/// The end of jobs whose pushes were killed. Receivers that were stopped then and go on later would write what they had
/// from the source into what this push writes.
struct EndOfKilled<'a> {
    open: &'a Open,
    receivers: &'a [Receiver],
    /// How long receivers that have no room are waited for.
    patience: Duration,
    observer: Arc<dyn Observer>,
}

impl EndOfKilled<'_> {
    /// Ends these jobs; returns those of which nothing is left. A receiver that does not let this user in now may do so
    /// later.
    async fn end_all(&self, before: Vec<Unended>) -> Result<Vec<Unended>> {
        let ends = before
            .into_iter()
            .map(async |unended| (self.end(&unended).await, unended));
        let (mut left, mut failure) = (Vec::new(), None);
        let mut ends = pin!(stream::iter(ends).buffer_unordered(AT_ONCE));
        while let Some((ended, unended)) = ends.next().await {
            match ended {
                Ok(Abandoned::Ended) => left.push(unended),
                Ok(Abandoned::Absent) => left.push(unended.absent()),
                Ok(Abandoned::Unknown) => {}
                Err(error) => failure = Some(error),
            }
        }
        let Some(error) = failure else {
            return Ok(left);
        };
        left.into_iter()
            .try_for_each(|unended| unended.ended(None))?;
        Err(error)
    }

    /// Ends a job, or finds that none of its receivers has it.
    async fn end(&self, unended: &Unended) -> Result<Abandoned> {
        if unended.is_queue_alone() {
            return Ok(Abandoned::Ended);
        }
        let Self {
            open, receivers, ..
        } = *self;
        let is_at_target = unended.is_at(receivers);
        let has_all_receivers = unended.has_no_others(receivers);
        // one file may go to the very place of a directory that is there no more
        let is_directory = matches!(open.shape, TargetShape::Directory { .. });
        let shape = if is_at_target {
            open.shape.clone()
        } else {
            TargetShape::Directory { tops: Vec::new() }
        };
        let durability = Durability::End;
        let old_open = Open {
            shape,
            durability,
            ..Open::new(unended.path().to_vec(), open.run)
        };
        let names = (unended.job(), unended.epoch(), own_node());
        let config = match receivers {
            [_one] => SenderConfig::default(),
            _ => SenderConfig {
                silence_max: RECEIVER_SILENCE_MAX,
                ..SenderConfig::default()
            },
        };
        // its head may have been in the epoch in which it alone has sessions
        let old = SharedJob::new(names, Vec::new(), old_open, config).last_epoch();
        let end = |beginning, observer| self.end_when_not_busy(unended, &old, beginning, observer);
        // this push makes the directory in any case, and gives it its mode
        let may_begin = is_at_target && is_directory && has_all_receivers;
        let ended = match end(Beginning::UnderWay, &self.observer).await? {
            // the opening that was to begin it may still be on its way
            Ok(Abandoned::Absent) if may_begin => end(Beginning::Allowed, &self.observer).await?,
            // its mode may close the target, which a job opens up that begins
            Err(error) if may_begin && is_not_opened(&error) => {
                let silent: Arc<dyn Observer> = Arc::new(NoObserver);
                end(Beginning::Allowed, &silent)
                    .await?
                    .map_err(|_the_same| error)
            }
            ended => ended,
        };
        match ended {
            Ok(Abandoned::Absent) if !has_all_receivers || is_at_target => Ok(Abandoned::Unknown),
            Ok(ended) => Ok(ended),
            Err(error) => self.take_failure(unended, error),
        }
    }

    /// Ends the job `old`, and asks again for as long as its receivers are busy and the user waits.
    async fn end_when_not_busy(
        &self,
        unended: &Unended,
        old: &SharedJob,
        beginning: Beginning,
        observer: &Arc<dyn Observer>,
    ) -> Result<Result<Abandoned, Box<SessionEnd>>> {
        let began = Instant::now();
        loop {
            if beginning == Beginning::Allowed {
                unended.renew()?;
            }
            let observer = Arc::clone(observer);
            let listener = Arc::new(SessionWarnings);
            match end_abandoned(old, beginning, self.receivers, observer, listener).await {
                Err(error) if error.is_busy() && began.elapsed() < self.patience => {
                    tokio::time::sleep(ASKED_AGAIN_AFTER).await;
                }
                ended => return Ok(ended),
            }
        }
    }

    /// Fails this push with the error that has kept the job from being ended, unless that leaves this push alone.
    fn take_failure(&self, unended: &Unended, error: Box<SessionEnd>) -> Result<Abandoned> {
        let path = String::from_utf8_lossy(unended.path());
        let note = unended.file().display();
        let what = format!("what a push that was killed has left at '{path}' cannot be ended");
        let remedy = format!("where nothing of it goes on any more, remove '{note}'");
        // one that is away or busy may do so later
        let what = if error.is_away() || error.is_busy() {
            what
        } else {
            format!("{what} ({remedy})")
        };
        // this push does not depend on what may be done elsewhere
        let is_elsewhere = !unended.is_at(self.receivers);
        if is_elsewhere && (is_not_opened(&error) || !unended.meets(self.receivers)) {
            terminal::warn(format_args!("{error}; {what}"));
            return Ok(Abandoned::Unknown);
        }
        let failed = JobError::PerhapsBegun {
            error,
            absent_at: None,
        };
        Err(as_failure(failed).context(what))
    }
}

/// Tells each warning once.
struct Once {
    observer: Arc<dyn Observer>,
    told: Told,
}

impl Observer for Once {
    fn on(&self, event: &Event) {
        let is_new = match event {
            Event::Warned { message } => self.told.insert(message),
            _ => true,
        };
        if is_new {
            self.observer.on(event);
        }
    }
}

/// Whether a receiver does not open the target, for this user or at all.
fn is_not_opened(error: &SessionEnd) -> bool {
    use RefusalCode::{Denied, Target};
    matches!(error, SessionEnd::Session(SessionError::Refused(refusal)) if matches!(refusal.code, Denied | Target))
}

/// Whether a push that has come to this leaves nothing that the next one would have to end.
pub(crate) fn leaves_nothing(ended: &Result<JobEnd, JobError>) -> bool {
    matches!(
        ended,
        Ok(_)
            | Err(JobError::NotBegun(_)
                | JobError::Interrupted {
                    may_have_begun: false
                })
    )
}

/// Leads a job that begins at the first of so many receivers. Where it comes to nothing because a receiver was lost
/// which may have begun it, another job takes its place, which begins at a receiver that does not have the first.
pub(crate) fn lead_again(
    receivers: usize,
    mut lead: impl FnMut(usize) -> Result<Led>,
) -> Result<Led> {
    let mut begins_at = 0;
    for _ in 1..receivers {
        let led = lead(begins_at)?;
        let Err(JobError::PerhapsBegun {
            absent_at: Some(at),
            ..
        }) = led.ended
        else {
            return Ok(led);
        };
        begins_at = at;
    }
    lead(begins_at)
}

/// Notes that a job begins.
pub(crate) fn note(job: &SharedJob, receivers: &[Receiver]) -> Result<Unended> {
    Unended::note(
        &settings::home(Role::Client)?,
        (job.id, job.epoch),
        receivers,
    )
}

/// The jobs of a cluster that no push leads any more, whatever their targets are.
pub(crate) fn left_in(cluster: &str) -> Result<Vec<Unended>> {
    let mut left = Unended::all(&settings::home(Role::Client)?)?;
    left.retain(|unended| unended.is_in(cluster));
    Ok(left)
}

/// Notes that the queue of a job is about to be made in this cluster.
pub(crate) fn note_queue(
    job: &SharedJob,
    receivers: &[Receiver],
    cluster: &str,
) -> Result<Unended> {
    Unended::note_queue(
        &settings::home(Role::Client)?,
        (job.id, job.epoch),
        receivers,
        cluster,
    )
}

/// The job that these settings ask for, which this node does in so many sessions at once: together they keep '--limit'.
pub(crate) fn job(
    settings: &PushSettings,
    sources: &Sources,
    (id, epoch): (SharedJobId, u64),
) -> Result<SharedJob> {
    let job = settings.job(sources)?;
    let kinds = job.open.keeping.kinds;
    if settings.args.keeping.archive && kinds.has_any(Kinds::LINKS) {
        terminal::warn("hard links become files of their own where several receivers write");
    }
    let keeping = Keeping {
        kinds: kinds.without(Kinds::LINKS),
        ..job.open.keeping
    };
    let open = Open {
        shape: of_several(job.open.shape),
        keeping,
        delta: false,
        // no receiver removes what another may have made
        in_the_way: InTheWay::Stays,
        protected: Vec::new(),
        ..job.open
    };
    let storage = settings::storage(settings.args.storage, |notice| terminal::warn(notice));
    let config = SenderConfig {
        file_io: storage.file_io,
        direct: storage.direct,
        scan: settings.scan(),
        owners: settings.owners(),
        zeros: settings.zeros(),
        instead: settings.instead(),
        // of all sessions of this process together, however many are at work
        rate_shared: settings.args.limit().map(SharedRate::new),
        silence_max: RECEIVER_SILENCE_MAX,
        ..SenderConfig::default()
    };
    Ok(SharedJob::new(
        (id, epoch, own_node()),
        job.sources,
        open,
        config,
    ))
}

fn own_node() -> NodeName {
    NodeName::new(&own_name())
        .or_else(|| NodeName::new("sender"))
        .expect("this is a name")
}

/// The shape of a target of several: one file goes into a directory of this name, too.
fn of_several(shape: TargetShape) -> TargetShape {
    match shape {
        TargetShape::Single { name } => TargetShape::Directory {
            tops: vec![TopName(name)],
        },
        shape @ TargetShape::Directory { .. } => shape,
    }
}

fn summary_of(ended: &JobEnd, started: Instant) -> Summary {
    let JobEnd { count, .. } = ended;
    Summary {
        counters: Counters::from(count.counts),
        not_kept: count.not_kept.clone(),
        elapsed: started.elapsed(),
        measured: started.elapsed(),
        ..Summary::default()
    }
}

fn as_text(summary: &Summary, By { noun, took_part }: &By, served: usize) -> String {
    let rate = ByteRate::new(summary.counters.bytes, summary.elapsed);
    let seconds = summary.elapsed.as_secs_f64();
    let took_part = took_part.as_ref().map(|took_part| format!("{took_part}\n"));
    format!(
        "{}, {} in {seconds:.2} s: {rate}, by {}\n{}verified (wire), flushed\n",
        counted(summary.counters.files, "file"),
        ByteCount(summary.counters.bytes),
        counted(served as u64, noun),
        took_part.unwrap_or_default(),
    )
}

fn as_failure(error: JobError) -> anyhow::Error {
    match error {
        JobError::Interrupted { .. } => failure(Exit::Interrupted, error.to_string()),
        // as where all that there is no room for are files
        JobError::NoRoom(_) => failure(Exit::Partial, error.to_string()),
        JobError::NotShared(_) => failure(Exit::Target, error.to_string()),
        JobError::Lost(_) | JobError::Queue(_) => failure(Exit::Broken, error.to_string()),
        JobError::NotBegun(error) | JobError::PerhapsBegun { error, .. } => match *error {
            SessionEnd::Connect(error) => error.into(),
            SessionEnd::Session(error) => error.into(),
            error @ SessionEnd::NoRoom { .. } => failure(
                Exit::Partial,
                format!("{error}; make room, and run the same command again"),
            ),
            error @ SessionEnd::InVain { .. } => failure(Exit::Broken, error.to_string()),
            SessionEnd::Stop(error) => error.into(),
        },
    }
}

/// What is said around the sessions: several at once.
pub(crate) struct SessionWarnings;

impl Listener for SessionWarnings {
    fn hear(&self, notice: &Notice<'_>) {
        if !matches!(
            notice,
            Notice::Dialling { .. } | Notice::SessionBegins { .. }
        ) {
            terminal::warn(notice);
        }
    }
}

/// What is told of a count in which more files are equal than were at the beginning.
const MOVED_BEFORE: &str =
    "(some of them may have been moved by this push, before a session was lost)\n";
/// How many jobs are ended at once: each takes a place at each receiver meanwhile.
const AT_ONCE: usize = 4;
/// How often receivers that have no room are asked again to end a job.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a push may end what another one has left before the user hears of it.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// How long a receiver may leave a ping without an answer, which it gives whatever its storage does: another one does
/// its work meanwhile, and nothing is lost by that.
const RECEIVER_SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use zmove_cluster::Stop;

    use super::*;

    #[test]
    fn another_job_begins_where_the_first_is_not_and_as_often_as_there_are_receivers() {
        let lead = |absent_at: &[Option<usize>]| {
            let mut begun_at = Vec::new();
            let led = lead_again(3, |begins_at| {
                begun_at.push(begins_at);
                let absent_at = absent_at[begun_at.len() - 1];
                let error = Box::new(SessionEnd::from(Stop::Missing));
                let ended = Err(JobError::PerhapsBegun { error, absent_at });
                Ok(Led {
                    id: SharedJobId([0; 16]),
                    ended,
                    served: 0,
                    has_lost_sessions: false,
                })
            });
            assert!(matches!(
                led.unwrap().ended,
                Err(JobError::PerhapsBegun { .. })
            ));
            begun_at
        };
        assert_eq!(lead(&[None]), [0], "nobody has said that it is not there");
        assert_eq!(lead(&[Some(2), None]), [0, 2]);
        assert_eq!(lead(&[Some(1), Some(2), Some(0)]), [0, 1, 2]);
    }
}
