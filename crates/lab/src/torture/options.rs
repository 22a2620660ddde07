//! Draws the options of a round: one choice from each row.
//!
//! A new option of zmove that must survive this test needs a row here and no other change.

use clap::ValueEnum;

use super::dice::Dice;
use super::trees::metadata::Features;

/// The options of one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) direction: Direction,
    /// Arguments of the client.
    pub(crate) command: Vec<&'static str>,
    pub(crate) serve: Vec<&'static str>,
    /// The transport of the connections.
    pub(crate) carrier: Carrier,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// From the client to the daemon.
    Push,
    /// From the daemon to the client.
    Pull,
    /// From another daemon to the daemon, on request of the client.
    Copy,
}

/// The transport of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// TCP through the relay, which can disturb it.
    Relay,
    /// UDP directly to the daemon.
    Straight,
    /// TCP directly to a receiver or sender that is started by a substitute for ssh.
    Ssh,
}

/// A choice: its weight and its arguments.
#[derive(Debug)]
struct Choice {
    weight: u64,
    command: &'static [&'static str],
    serve: &'static [&'static str],
}

/// How long the choice from a row applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// To all attempts of a round.
    Round,
    /// To one attempt. A later attempt may use another choice.
    Try,
}

impl Direction {
    /// Returns the subcommand.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Copy => "copy",
        }
    }
}

impl Options {
    /// Draws options for a transfer in a given or random direction.
    pub(crate) fn draw(dice: &mut Dice, forced: Option<Direction>) -> Self {
        let drawn = DIRECTIONS[dice.weighted(DIRECTIONS.iter().map(|(weight, _)| *weight))].1;
        let direction = forced.unwrap_or(drawn);
        let mut options = Self {
            direction,
            command: Vec::new(),
            serve: Vec::new(),
            carrier: Carrier::Relay,
        };
        for row in CARRIERS.iter().chain(&ROWS) {
            options.choose(row.1, dice);
        }
        if direction == Direction::Copy {
            // A copy runs between daemons, never over ssh.
            options.command.retain(|word| *word != "--ssh");
        }
        options.carrier = match () {
            () if options.command.contains(&"quic") => Carrier::Straight,
            () if options.command.contains(&"--ssh") => Carrier::Ssh,
            () => Carrier::Relay,
        };
        options
    }

    /// Returns the features that a transfer preserves, out of those that the file systems support.
    pub(crate) fn keeps(&self, held: Features) -> Features {
        Features {
            privileged: held.privileged && self.command.contains(&"-a"),
            ..held
        }
    }

    /// Returns options for another attempt of the round. Choices that may differ between attempts are drawn again.
    pub(crate) fn redrawn(&self, dice: &mut Dice) -> Self {
        let mut options = Self {
            command: Vec::new(),
            ..self.clone()
        };
        let fixed = |word: &&&str| {
            let mut free = ROWS
                .iter()
                .filter(|(span, _)| *span == Span::Try)
                .flat_map(|(_, row)| *row);
            !free.any(|choice| choice.command.contains(*word))
        };
        options.command.extend(self.command.iter().filter(fixed));
        let serve = options.serve.len();
        for (_, row) in ROWS.iter().filter(|(span, _)| *span == Span::Try) {
            options.choose(row, dice);
        }
        options.serve.truncate(serve);
        options
    }

    fn choose(&mut self, row: &[Choice], dice: &mut Dice) {
        let choice = &row[dice.weighted(row.iter().map(|choice| choice.weight))];
        self.command.extend(choice.command);
        self.serve.extend(choice.serve);
    }
}

const fn command(weight: u64, command: &'static [&'static str]) -> Choice {
    Choice {
        weight,
        command,
        serve: &[],
    }
}

const fn serve(weight: u64, serve: &'static [&'static str]) -> Choice {
    Choice {
        weight,
        command: &[],
        serve,
    }
}

/// The directions and their weights.
const DIRECTIONS: [(u64, Direction); 3] = [
    (6, Direction::Push),
    (3, Direction::Pull),
    (3, Direction::Copy),
];

/// Rows of options, one choice each. No word may appear in two rows, because [`Options::redrawn`] could not tell to
/// which row it belongs.
const ROWS: [(Span, &[Choice]); 10] = [
    (
        Span::Try,
        &[
            command(3, &[]),
            command(1, &["--streams=1"]),
            command(1, &["--streams=2"]),
            command(1, &["--streams=3"]),
            command(1, &["--streams=5"]),
            command(1, &["--streams=8"]),
        ],
    ),
    // Whether the client reconnects when its connections are lost.
    (Span::Try, &[command(2, &[]), command(1, &["--timeout=0"])]),
    (
        Span::Try,
        &[command(3, &[]), command(1, &["--io-engine=uring"])],
    ),
    (
        Span::Try,
        &[
            command(1, &[]),
            command(2, &["--delta=always"]),
            command(1, &["--delta=never"]),
        ],
    ),
    (
        Span::Try,
        &[
            command(3, &[]),
            command(1, &["--direct=on"]),
            command(1, &["--direct=off"]),
        ],
    ),
    (
        Span::Round,
        &[
            command(3, &["--durability=end"]),
            command(2, &["--durability=none"]),
            command(1, &["--durability=file"]),
        ],
    ),
    (Span::Round, &[command(4, &[]), command(1, &["--checksum"])]),
    (Span::Round, &[command(5, &[]), command(1, &["--inplace"])]),
    // Only metadata that these options preserve is drawn.
    (
        Span::Round,
        &[
            command(1, &["--strict-metadata"]),
            command(3, &["-a", "--strict-metadata"]),
        ],
    ),
    (
        Span::Round,
        &[
            serve(4, &[]),
            serve(1, &["--io-engine", "uring"]),
            serve(1, &["--direct", "on"]),
            serve(1, &["--direct", "off"]),
            serve(1, &["--io-engine", "uring", "--direct", "on"]),
        ],
    ),
];

const CARRIERS: [(Span, &[Choice]); 1] = [(
    Span::Round,
    &[
        command(8, &["--transport", "tcp"]),
        Choice {
            weight: 2,
            command: &["--transport", "tcp", "--cipher", "none"],
            serve: &["--allow-clear"],
        },
        command(1, &["--transport", "quic"]),
        command(1, &["--ssh", "--transport", "tcp"]),
    ],
)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_has_chosen_stays_and_what_a_try_chooses_differs() {
        let mut dice = Dice::new(3);
        let mut differed = false;
        for _ in 0..50 {
            let options = Options::draw(&mut dice, None);
            let again = options.redrawn(&mut dice);
            let of_round = |options: &Options| {
                let stays = |word: &&&str| {
                    word.starts_with("--dur") || **word == "--checksum" || **word == "quic"
                };
                options
                    .command
                    .iter()
                    .filter(stays)
                    .copied()
                    .collect::<Vec<_>>()
            };
            assert_eq!(of_round(&options), of_round(&again));
            assert_eq!(
                (&options.serve, options.carrier),
                (&again.serve, again.carrier)
            );
            differed |= options.command != again.command;
        }
        assert!(differed);
    }

    #[test]
    fn lanes_in_clear_are_allowed_and_quic_has_none() {
        let mut dice = Dice::new(3);
        let mut in_clear = 0;
        let mut over_quic = 0;
        for _ in 0..200 {
            let Options {
                command,
                serve,
                carrier,
                ..
            } = Options::draw(&mut dice, None);
            assert_eq!(
                command.contains(&"--cipher"),
                serve.contains(&"--allow-clear")
            );
            assert_eq!(command.contains(&"quic"), carrier == Carrier::Straight);
            assert!(!(command.contains(&"--cipher") && command.contains(&"quic")));
            in_clear += usize::from(command.contains(&"--cipher"));
            over_quic += usize::from(command.contains(&"quic"));
        }
        assert!(in_clear > 0 && over_quic > 0);
    }
}
