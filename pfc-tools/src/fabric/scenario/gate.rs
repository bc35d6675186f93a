//! `[[gate]]`: an expected result of a run, whose number the expectation comes from, and the
//! published value.

/// The measured quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measure {
    /// Goodput in Gb/s of each flow of a traffic group; `None` for all groups.
    Goodput(Option<u32>),
    /// Rate on a link in Gb/s, from one node to the next.
    Wire {
        /// The sending node.
        node: usize,
        /// The node at the other end.
        next: usize,
    },
    /// Length of a queue in KB over time.
    Queue {
        /// The node that has the queue.
        node: usize,
        /// The node at the other end of the link.
        next: usize,
    },
    /// Alpha of DCQCN, of each flow of a traffic group.
    Alpha(Option<u32>),
    /// Completion time of each flow of a traffic group, in us.
    Completion(Option<u32>),
    /// Slowdown of each flow of a traffic group.
    Slowdown(Option<u32>),
    /// Completion time of a traffic group, one for each run, in us.
    Collective(Option<u32>),
    /// Completion time of each rank of a traffic group, in us.
    Rank(Option<u32>),
    /// Pauses received by the nodes whose names start with this prefix.
    Pauses(String),
    /// Packets dropped by switches.
    Drops,
    /// Packets retransmitted by senders.
    Retransmitted,
    /// Deadlocks: 1 for each run with a deadlock, 0 for each without.
    Deadlocks,
    /// Distance of a curve from a published one.
    Curve {
        /// The measured curve.
        of: Curve,
        /// Name of the published curve.
        file: String,
    },
}

/// A measured curve that is compared with a published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// Goodput of all flows of a traffic group over time. The distance is the root mean square of
    /// the differences of window means, in Gb/s.
    Goodput(Option<u32>),
    /// Length of a queue over time; the distance is the same, in KB.
    Queue {
        /// The node that has the queue.
        node: usize,
        /// The node at the other end of the link.
        next: usize,
    },
    /// Distribution of a queue's length over time. The distance is that of Kolmogorov and Smirnov:
    /// the largest difference of the two distributions.
    QueueCdf {
        /// The node that has the queue.
        node: usize,
        /// The node at the other end of the link.
        next: usize,
    },
}

/// Reduces several values to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// Mean.
    Mean,
    /// Sum.
    Sum,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Coefficient of variation: standard deviation divided by the mean.
    Variation,
    /// Quantile, in thousandths.
    Quantile(u32),
}

/// Where the expectation of a gate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A paper measured it.
    Paper,
    /// A model of a paper or a closed form predicts it.
    Model,
    /// Another simulator computed it.
    Simulator,
    /// It holds by construction: nothing is lost, two implementations agree.
    Invariant,
    /// An earlier version of Feroce had this value.
    Regression,
}

impl Kind {
    /// All kinds, in the order of the summary.
    pub const ALL: [Self; 5] =
        [Self::Paper, Self::Model, Self::Simulator, Self::Invariant, Self::Regression];

    /// The name in scenarios and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Model => "model",
            Self::Simulator => "simulator",
            Self::Invariant => "invariant",
            Self::Regression => "regression",
        }
    }

    /// Returns true if gates of this kind decide whether a figure is reproduced.
    pub const fn reproduces(self) -> bool {
        matches!(self, Self::Paper | Self::Model)
    }
}

/// A condition on the value.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// A lower bound.
    AtLeast(f64),
    /// An upper bound.
    AtMost(f64),
    /// Within a relative distance of the value that the gate of the same name has in another case.
    Near {
        /// The other case, which comes earlier in the file.
        case: String,
        /// The relative distance, 0.1 for 10 %.
        part: f64,
    },
    /// Above the value that the gate of the same name has in another case.
    Above {
        /// The other case, which comes earlier in the file.
        case: String,
    },
}

impl Bound {
    /// The key in scenarios.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::AtLeast(_) => "at_least",
            Self::AtMost(_) => "at_most",
            Self::Near { .. } => "near",
            Self::Above { .. } => "above",
        }
    }

    /// The case that the bound refers to.
    pub fn other_case(&self) -> Option<&str> {
        match self {
            Self::Near { case, .. } | Self::Above { case } => Some(case),
            Self::AtLeast(_) | Self::AtMost(_) => None,
        }
    }
}

/// A miss that is known: the value does not meet the gate, and stays where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// What is different, and which case shows it.
    pub why: String,
    /// The value is at least this; otherwise it has changed and the gate fails.
    pub at_least: f64,
    /// The value is at most this.
    pub at_most: f64,
}

/// An expected result of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// Name in the output.
    pub name: String,
    /// Where the expectation comes from; `None` if there is no expectation.
    pub kind: Option<Kind>,
    /// The figure or claim of a paper that the gate is about.
    pub reproduces: Option<String>,
    /// The measured quantity.
    pub measure: Measure,
    /// How several values are reduced to one.
    pub stat: Stat,
    /// Conditions on the value; without any, the value is only shown.
    pub bounds: Vec<Bound>,
    /// The published value.
    pub published: Option<f64>,
    /// The value of HPCC's ns-3 simulator.
    pub ns3: Option<f64>,
    /// The gate is known not to be met.
    pub explained: Option<Explained>,
}

impl Gate {
    /// The largest of the fixed lower bounds.
    pub fn lower(&self) -> Option<f64> {
        let fixed = self.bounds.iter().filter_map(|bound| match bound {
            Bound::AtLeast(min) => Some(*min),
            _ => None,
        });
        fixed.max_by(f64::total_cmp)
    }

    /// The smallest of the fixed upper bounds.
    pub fn upper(&self) -> Option<f64> {
        let fixed = self.bounds.iter().filter_map(|bound| match bound {
            Bound::AtMost(max) => Some(*max),
            _ => None,
        });
        fixed.min_by(f64::total_cmp)
    }

    /// Returns true if the value is within the fixed bounds.
    pub fn admits(&self, value: f64) -> bool {
        self.lower().is_none_or(|min| value >= min) && self.upper().is_none_or(|max| value <= max)
    }
}
