//! Collective communication: all-reduce on a ring and on a tree, all-to-all, and a pipeline.
//!
//! Each pair of neighbours has one QP. A rank sends a message when it has received what the message
//! is made of, and has worked on it. Nothing else synchronises the ranks.

use super::workload::Workload;
use crate::fabric::config::{FlowConfig, Milestone, Step};
use crate::fabric::time::Time;

/// The kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reduce-scatter and all-gather on a ring: 2 (N - 1) messages of 1/N of the data for each
    /// rank.
    RingAllReduce,
    /// Reduction up a binary tree, and broadcast down the tree.
    TreeAllReduce,
    /// Each rank sends 1/N of its data to each other rank.
    AllToAll {
        /// Number of ranks that each rank sends to at a time.
        at_once: usize,
    },
    /// Micro-batches that pass from each rank to the next one, and back if `backward` is set.
    Pipeline {
        /// Work of a rank on a micro-batch on the way back; `None` if there is no way back.
        backward: Option<Time>,
    },
}

/// A collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// The kind.
    pub kind: Kind,
    /// Numbers of the hosts, in the order of the ranks.
    pub ranks: Vec<u32>,
    /// Bytes of a rank's data; in a pipeline, of a micro-batch.
    pub size: u64,
    /// Number of messages that the data is cut into on a tree, or number of micro-batches.
    pub chunks: u32,
    /// Work of a rank between the arrival of a message and the message made of it.
    pub compute: Time,
}

impl Collective {
    /// Bytes and number of the messages of a flow.
    pub fn messages(&self) -> (u64, u32) {
        let ranks = self.ranks.len() as u64;
        let part = |parts: u64| self.size.div_ceil(parts).max(1);
        match self.kind {
            Kind::RingAllReduce => {
                (part(ranks), u32::try_from(2 * (ranks - 1)).unwrap_or(u32::MAX))
            }
            Kind::TreeAllReduce => (part(u64::from(self.chunks)), self.chunks),
            Kind::AllToAll { .. } => (part(ranks), 1),
            Kind::Pipeline { .. } => (self.size, self.chunks),
        }
    }

    /// Adds flows and steps of the collective. `flow` is a flow of the traffic group `name`,
    /// without its ends and messages.
    ///
    /// # Errors
    /// If there are too many flows or steps.
    pub(super) fn draw(
        &self,
        name: &str,
        flow: FlowConfig,
        workload: &mut Workload,
    ) -> Result<(), String> {
        let mut builder = Builder { collective: self, name, flow, workload };
        match self.kind {
            Kind::RingAllReduce => builder.ring(),
            Kind::TreeAllReduce => builder.tree(),
            Kind::AllToAll { at_once } => builder.all_to_all(at_once),
            Kind::Pipeline { backward } => builder.pipeline(backward),
        }
    }
}

/// The ranks on both sides of rank `rank` in the binary tree: its parent, and its children.
fn tree_neighbours(rank: usize, ranks: usize) -> (Option<usize>, Vec<usize>) {
    let parent = rank.checked_sub(1).map(|rank| rank / 2);
    (parent, (2 * rank + 1..=2 * rank + 2).filter(|&child| child < ranks).collect())
}

struct Builder<'a> {
    collective: &'a Collective,
    name: &'a str,
    flow: FlowConfig,
    workload: &'a mut Workload,
}

impl Builder<'_> {
    fn ranks(&self) -> usize {
        self.collective.ranks.len()
    }

    /// Adds a flow between two ranks. Its first `released` messages need not wait.
    fn flow(&mut self, from: usize, to: usize, released: Option<u32>) -> Result<u32, String> {
        let (message, messages) = self.collective.messages();
        let (from, to) = (self.collective.ranks[from], self.collective.ranks[to]);
        let messages = Some(messages);
        let flow = FlowConfig { from, to, message, messages, released, ..self.flow };
        self.workload.flow(self.name, flow)
    }

    /// Adds a step of `rank` that takes `takes` and then releases messages of the flows `releases`.
    fn step(
        &mut self,
        rank: usize,
        after: Vec<Milestone>,
        takes: Time,
        releases: &[u32],
    ) -> Result<u32, String> {
        let step = Step {
            group: self.flow.group,
            host: Some(self.collective.ranks[rank]),
            after,
            start: self.flow.start,
            takes,
            starts: Vec::new(),
            releases: releases.to_vec(),
        };
        self.workload.step(self.name, step)
    }

    /// Message m of a rank is made of message m - 1 from the rank before it. The first N - 1
    /// messages that arrive are reduced, which takes time; the others are only passed on.
    fn ring(&mut self) -> Result<(), String> {
        let ranks = self.ranks();
        let flows: Vec<u32> = (0..ranks)
            .map(|rank| self.flow(rank, (rank + 1) % ranks, Some(1)))
            .collect::<Result<_, _>>()?;
        let (_, messages) = self.collective.messages();
        for message in 0..messages - 1 {
            let takes = if message < messages / 2 { self.collective.compute } else { Time::ZERO };
            for rank in 0..ranks {
                let flow = flows[(rank + ranks - 1) % ranks];
                let after = vec![Milestone::Arrived { flow, message }];
                self.step(rank, after, takes, &[flows[rank]])?;
            }
        }
        Ok(())
    }

    /// A rank reduces chunk c with those of its children and sends it to its parent; the root sends
    /// it back down.
    fn tree(&mut self) -> Result<(), String> {
        let (ranks, chunks) = (self.ranks(), self.collective.chunks);
        let mut up = vec![u32::MAX; ranks];
        let mut down = vec![u32::MAX; ranks];
        for rank in 1..ranks {
            let (parent, children) = tree_neighbours(rank, ranks);
            let parent = parent.expect("not the root");
            let released = if children.is_empty() { None } else { Some(0) };
            up[rank] = self.flow(rank, parent, released)?;
            down[rank] = self.flow(parent, rank, Some(0))?;
        }
        for chunk in 0..chunks {
            let arrived = |flow: u32| Milestone::Arrived { flow, message: chunk };
            for rank in 0..ranks {
                let (parent, children) = tree_neighbours(rank, ranks);
                if children.is_empty() {
                    continue;
                }
                let from_children = children.iter().map(|&child| arrived(up[child])).collect();
                let to_children: Vec<u32> = children.iter().map(|&child| down[child]).collect();
                let to = if parent.is_some() { vec![up[rank]] } else { to_children.clone() };
                self.step(rank, from_children, self.collective.compute, &to)?;
                if parent.is_some() {
                    self.step(rank, vec![arrived(down[rank])], Time::ZERO, &to_children)?;
                }
            }
        }
        Ok(())
    }

    /// Rank r sends to the ranks r + 1, r + 2 and so on, a few at a time: the next one when the
    /// first of them has everything.
    fn all_to_all(&mut self, at_once: usize) -> Result<(), String> {
        let ranks = self.ranks();
        for rank in 0..ranks {
            let mut flows: Vec<u32> = Vec::new();
            for distance in 1..ranks {
                let flow = self.flow(rank, (rank + distance) % ranks, None)?;
                flows.push(flow);
                if distance <= at_once {
                    continue;
                }
                let held = &mut self.workload.flows[flow as usize];
                (held.is_held, held.start) = (true, Time::ZERO);
                let before = flows[distance - 1 - at_once];
                let step =
                    self.step(rank, vec![Milestone::Ended(before)], self.collective.compute, &[])?;
                self.workload.steps[step as usize].starts.push(flow);
            }
        }
        Ok(())
    }

    /// A rank works on one micro-batch at a time, in order, and first on all those of the way
    /// there.
    fn pipeline(&mut self, backward: Option<Time>) -> Result<(), String> {
        let ranks = self.ranks();
        let there: Vec<u32> =
            (1..ranks).map(|rank| self.flow(rank - 1, rank, Some(0))).collect::<Result<_, _>>()?;
        let mut last = Vec::new();
        for rank in 0..ranks {
            let to: Vec<u32> = there.get(rank).copied().into_iter().collect();
            let from = rank.checked_sub(1).map(|before| there[before]);
            last.push(self.stage(rank, from, &to, None, self.collective.compute)?);
        }
        let Some(takes) = backward else { return Ok(()) };
        let back: Vec<u32> =
            (1..ranks).map(|rank| self.flow(rank, rank - 1, Some(0))).collect::<Result<_, _>>()?;
        for (rank, &worked) in last.iter().enumerate() {
            let to: Vec<u32> = rank.checked_sub(1).map(|before| back[before]).into_iter().collect();
            let from = back.get(rank).copied();
            self.stage(rank, from, &to, Some(worked), takes)?;
        }
        Ok(())
    }

    /// The work of `rank` on each micro-batch, after the step `previous`. Returns the last step.
    fn stage(
        &mut self,
        rank: usize,
        from: Option<u32>,
        to: &[u32],
        mut previous: Option<u32>,
        takes: Time,
    ) -> Result<u32, String> {
        for message in 0..self.collective.chunks {
            let arrived = from.map(|flow| Milestone::Arrived { flow, message });
            let after = arrived.into_iter().chain(previous.map(Milestone::Done)).collect();
            previous = Some(self.step(rank, after, takes, to)?);
        }
        previous.ok_or_else(|| format!("{}: no micro-batches", self.name))
    }
}
