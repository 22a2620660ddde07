//! Implements `zmove probe`, which measures the path. In each round, some lanes carry bytes from memory, which the
//! receiver counts and discards.
//!
//! All rates are differences between two samples on the receiver's clock, so they include neither bytes in socket
//! buffers nor the wait for an answer. The beginning of a round, in which windows grow, is reported separately. Each
//! round uses its own lanes, dialed as a push would dial them. The counters of their connections (`TCP_INFO`) therefore
//! cover only that round, and no lane begins with a window that another round has grown. A filler frame is hashed on
//! both sides and sealed like a chunk, so it costs the same CPU time as a push without storage.
//!
//! **Invariant:** when [`probe`] returns, all of its threads have ended.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};
use zmove_transport::{ControlError, ControlWriter, Inbox, LaneError, LaneSink, blocking};
use zmove_wire::limits::SWEEP_MILLIS_MAX;
use zmove_wire::{
    Intent, Open, Overwrite, SampleTime, Sampled, SweepOrder, Swept, ToReceiver, ToSender,
    encode_message, out_of_order,
};

use crate::control::link::Link;
use crate::control::relay::ReceivedMessage;
use crate::control::{GOODBYE_TIMEOUT, open_without_queue, receive};
use crate::error::SessionError;
use crate::push::run::cpu_time;
use crate::tune::path;

mod fillers;
mod report;

use fillers::{Fillers, send_one};
pub use report::{Carried, ProbeReport, Round, RoundTrips};

/// The settings of a probe.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    /// The directory below which this side may write, as entered by the user. Empty for the first root.
    pub target: Vec<u8>,
    /// The number of lanes in each round. A number above the receiver's maximum is reduced to that maximum.
    pub lanes: Vec<u16>,
    /// Duration of each round's measurement. It begins once windows have grown for [`RAMP_MIN`] and for
    /// [`RAMP_ROUND_TRIPS`] round trips.
    pub time: Duration,
    /// A sweep of the target's storage to run after the rounds, if any.
    pub sweep: Option<SweepOrder>,
    /// Time at which the command began.
    pub started: Instant,
}

/// An event of a running probe.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProbeEvent {
    /// A round with this number of lanes begins.
    Lanes(u16),
    /// A round is over.
    Measured(Box<Round>),
    /// The sweep of the target's storage begins.
    Sweeping,
}

/// Measures the path over `link`. The link's supply must provide a new set of lanes for each requested number. One lane
/// must already be on its way.
///
/// # Errors
/// Returns a [`SessionError`] if the probe did not complete, and [`SessionError::Interrupted`] once `stop` resolves.
pub async fn probe(
    config: &ProbeConfig,
    link: Link,
    tell: &mut (dyn FnMut(ProbeEvent) + Send),
    stop: impl Future<Output = ()>,
) -> Result<ProbeReport, SessionError> {
    tokio::select! {
        report = run(config, link, tell) => report,
        () = stop => Err(SessionError::Interrupted),
    }
}

async fn run(
    config: &ProbeConfig,
    link: Link,
    tell: &mut (dyn FnMut(ProbeEvent) + Send),
) -> Result<ProbeReport, SessionError> {
    let greeting = link.greeting();
    let more = link.supply.map(|supply| supply.more);
    let (reader, mut writer) = link.control;
    let open = Open {
        intent: Intent::Measure,
        overwrite: Overwrite::Nothing,
        ..Open::new(config.target.clone(), link.transfer.0)
    };
    let (inbox, opened) = open_without_queue(greeting, reader, &mut writer, open).await?;
    let (broken_in, broken) = mpsc::unbounded_channel();
    let mut probing = RunningProbe {
        writer,
        inbox,
        samples: 0,
        broken,
        broken_in,
        lanes: link.lanes,
        more,
        lanes_ended: 0,
        round_trip: Duration::ZERO,
    };
    let mut report = ProbeReport {
        lanes_max: opened.lanes_max,
        ..ProbeReport::default()
    };
    (report.first_byte, report.round_trips) = probing.begin(config.started).await?;
    let mut counts: Vec<_> = config
        .lanes
        .iter()
        .map(|lanes| (*lanes).min(opened.lanes_max))
        .collect();
    counts.dedup();
    for count in counts {
        tell(ProbeEvent::Lanes(count));
        let round = probing.round(count, config.time).await?;
        tell(ProbeEvent::Measured(Box::new(round.clone())));
        report.rounds.push(round);
    }
    if let Some(order) = config.sweep {
        tell(ProbeEvent::Sweeping);
        report.swept = Some(probing.sweep(order).await?);
    }
    probing.end().await?;
    Ok(report)
}

/// A running probe.
struct RunningProbe {
    writer: ControlWriter,
    inbox: Inbox<ReceivedMessage>,
    samples: u64,
    broken: mpsc::UnboundedReceiver<LaneError>,
    broken_in: mpsc::UnboundedSender<LaneError>,
    lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    more: Option<mpsc::UnboundedSender<u16>>,
    /// Number of lanes that have ended in all rounds.
    lanes_ended: u32,
    /// Shortest round trip so far.
    round_trip: Duration,
}

impl RunningProbe {
    /// Sends the first byte immediately, and then measures the round trip while nothing else is in flight. Returns the
    /// time from `started` until the receiver had that byte, and the measured round trips.
    async fn begin(&mut self, started: Instant) -> Result<(Duration, RoundTrips), SessionError> {
        let first = self.lanes(1).await?.swap_remove(0);
        blocking(move || send_one(first)).await?;
        self.lanes_ended += 1;
        self.sample(SampleTime::Ended(self.lanes_ended)).await?;
        let begun = Instant::now();
        let mut pings = Vec::new();
        while pings.len() < PINGS_MIN || (pings.len() < PINGS_MAX && begun.elapsed() < PINGS_TIME) {
            pings.push(self.sample(SampleTime::Now).await?);
        }
        let best = pings
            .iter()
            .min_by_key(|ping| ping.round_trip)
            .expect("there was one at least");
        self.round_trip = best.round_trip;
        let seen: Vec<_> = pings.iter().map(|ping| ping.round_trip).collect();
        Ok((best.first_byte(started), RoundTrips::of(&seen)))
    }

    /// Waits for a new set of `count` lanes.
    async fn lanes(&mut self, count: u16) -> Result<Vec<Box<dyn LaneSink>>, SessionError> {
        let mut lanes = Vec::with_capacity(usize::from(count));
        while lanes.len() < usize::from(count) {
            lanes.push(self.lanes.recv().await.ok_or(SessionError::NoLane)??);
        }
        Ok(lanes)
    }

    async fn round(&mut self, count: u16, time: Duration) -> Result<Round, SessionError> {
        let asked = self.more.as_ref().map(|more| more.send(count));
        asked.and_then(Result::ok).ok_or(SessionError::NoLane)?;
        let lanes = self.lanes(count).await?;
        let before = self.sample(SampleTime::Now).await?.sampled;
        let fillers = Fillers::start(lanes, &self.broken_in)?;
        let mut round = Round {
            lanes: count,
            ..Round::default()
        };
        self.wait((self.round_trip * RAMP_ROUND_TRIPS).max(RAMP_MIN))
            .await?;
        let cpu = cpu_time();
        let grown = self.sample(SampleTime::Now).await?;
        let until = Instant::now() + time;
        let mut last = grown.sampled;
        while Instant::now() < until {
            self.wait(PING_EVERY.min(until.saturating_duration_since(Instant::now())))
                .await?;
            let ping = self.sample(SampleTime::Now).await?;
            round.round_trips.add(ping.round_trip);
            last = ping.sampled;
        }
        round.sender_cpu = cpu_time().saturating_sub(cpu);
        round.receiver_cpu =
            Duration::from_micros(last.cpu_us.saturating_sub(grown.sampled.cpu_us));
        round.ramp = Carried::between(&before, &grown.sampled);
        round.steady = Carried::between(&grown.sampled, &last);
        let smoothed: Vec<_> = fillers
            .probes
            .iter()
            .filter_map(|probe| probe.read()?.round_trip)
            .collect();
        let count = u32::try_from(smoothed.len()).expect("few lanes");
        round.smoothed = (count > 0).then(|| smoothed.iter().sum::<Duration>() / count);
        round.congestion = fillers.probes.iter().find_map(|probe| probe.congestion());
        fillers.end();
        self.lanes_ended += u32::from(round.lanes);
        self.sample(SampleTime::Ended(self.lanes_ended)).await?;
        round.path = path::gather(fillers.probes.iter());
        // All sent data has arrived, so no thread is blocked and dropping the fillers does not wait long.
        drop(fillers);
        Ok(round)
    }

    async fn sample(&mut self, when: SampleTime) -> Result<Ping, SessionError> {
        self.samples += 1;
        let sample = self.samples;
        let asked = Instant::now();
        self.writer
            .send(&encode_message(&ToReceiver::Sample { sample, when }))
            .await?;
        match self.answer().await? {
            ToSender::Sampled(sampled) if sampled.sample == sample => Ok(Ping {
                asked,
                round_trip: asked.elapsed(),
                sampled,
            }),
            _ => out_of_order("an answer"),
        }
    }

    async fn sweep(&mut self, order: SweepOrder) -> Result<Swept, SessionError> {
        self.writer
            .send(&encode_message(&ToReceiver::Sweep(order)))
            .await?;
        let patience = Duration::from_millis(SWEEP_MILLIS_MAX) + SWEEP_PATIENCE;
        let answer = timeout(patience, self.answer())
            .await
            .unwrap_or(Err(SessionError::Silent))?;
        match answer {
            ToSender::Swept(swept) => Ok(swept),
            _ => out_of_order("an answer"),
        }
    }

    /// Receives the next message, unless a lane breaks first.
    async fn answer(&mut self) -> Result<ToSender, SessionError> {
        let message = tokio::select! {
            message = receive(&mut self.inbox) => message?,
            Some(error) = self.broken.recv() => return Err(self.explain_break(error).await),
        };
        match message {
            ToSender::Refused(refusal) => Err(SessionError::Refused(refusal)),
            message => Ok(message),
        }
    }

    async fn wait(&mut self, time: Duration) -> Result<(), SessionError> {
        let until = Instant::now() + time;
        tokio::select! {
            () = sleep_until(until.into()) => Ok(()),
            Some(error) = self.broken.recv() => Err(self.explain_break(error).await),
        }
    }

    /// Returns the error for a broken lane, which is the receiver's refusal if the receiver broke the lane.
    async fn explain_break(&mut self, error: LaneError) -> SessionError {
        let said = async {
            loop {
                match receive(&mut self.inbox).await {
                    Ok(ToSender::Refused(refusal)) => return Some(SessionError::Refused(refusal)),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
        };
        timeout(GOODBYE_TIMEOUT, said)
            .await
            .ok()
            .flatten()
            .unwrap_or(SessionError::Lane(error))
    }

    async fn end(mut self) -> Result<(), SessionError> {
        self.writer
            .send(&encode_message(&ToReceiver::Announce {
                items: 0,
                mismatches: 0,
            }))
            .await?;
        match self.answer().await? {
            ToSender::Finished(_) => {}
            _ => {
                return out_of_order("the last answer");
            }
        }
        let closed: Result<(), ControlError> = self.writer.finish().await;
        Ok(closed?)
    }
}

/// The answer to a request for a sample, with the time of the request and the round trip.
struct Ping {
    asked: Instant,
    round_trip: Duration,
    sampled: Sampled,
}

impl Ping {
    /// Returns the time from `started` until the receiver had the first frame. The receiver is assumed to have answered
    /// half a round trip after the request.
    fn first_byte(&self, started: Instant) -> Duration {
        let Sampled {
            clock_us, first_us, ..
        } = self.sampled;
        let ago = Duration::from_micros(clock_us.saturating_sub(first_us.unwrap_or(clock_us)));
        (self.asked + self.round_trip / 2)
            .saturating_duration_since(started)
            .saturating_sub(ago)
    }
}

/// Minimum time for which the windows of a round grow.
pub const RAMP_MIN: Duration = Duration::from_secs(1);
/// Minimum number of round trips for which the windows of a round grow.
pub const RAMP_ROUND_TRIPS: u32 = 10;
const PING_EVERY: Duration = Duration::from_millis(200);
const PINGS_MIN: usize = 5;
const PINGS_MAX: usize = 20;
const PINGS_TIME: Duration = Duration::from_millis(500);
/// Additional wait for the answer to a sweep, in which the receiver removes the files that it has written.
const SWEEP_PATIENCE: Duration = Duration::from_secs(60);
