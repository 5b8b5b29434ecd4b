//! Breadth first over all worlds. The first trace found to a broken property is therefore a shortest one.
//!
//! Worlds are told apart by a 64-bit fingerprint (at ten million worlds the odds of one collision are 1 in 400,000), and
//! only those of the present depth are kept whole. The edges that are no faults are kept, and walked backwards from the
//! goals: a world from which no goal is reached that way is stuck.

use super::{
    environment::take,
    properties::Broken,
    steps::{Setup, Step, possible},
    world::World,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasherDefault, Hash, Hasher},
    time::{Duration, Instant},
};

/// What a search found.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) worlds: usize,
    pub(crate) transitions: usize,
    pub(crate) depth: usize,
    pub(crate) goals: usize,
    /// Transitions at which two runs overlapped, one of them frozen past its lease.
    pub(crate) allowed_overlaps: usize,
    /// Kinds of steps that were taken, by name.
    pub(crate) taken: HashSet<String>,
    pub(crate) broken: BTreeMap<Broken, Counterexample>,
    pub(crate) time: Duration,
    /// False when the search ended at the limit of worlds.
    pub(crate) is_complete: bool,
}

/// A shortest run that breaks a property.
#[derive(Debug, Clone)]
pub(crate) struct Counterexample {
    pub(crate) steps: Vec<Step>,
}

impl Counterexample {
    /// The steps, one a line.
    pub(crate) fn print(&self) -> String {
        let lines = self.steps.iter().zip(1..);
        lines
            .map(|(step, number)| format!("  {number:2}. {step}\n"))
            .collect()
    }
}

/// When a search may end early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Every world has been seen.
    Exhausted,
    /// This property is broken for the first time.
    Broken(Broken),
}

#[derive(Default)]
struct Worlds {
    numbers: HashMap<u64, u32, BuildHasherDefault<Fingerprint>>,
    /// How each world was reached: from which, by what.
    from: Vec<(u32, Option<Step>)>,
    is_good: Vec<bool>,
    /// Edges that are no faults: to, from.
    edges: Vec<(u32, u32)>,
}

impl Worlds {
    /// The number of the world, and whether it is new.
    fn number(&mut self, world: &World, from: u32, step: Option<Step>) -> (u32, bool) {
        let mut hasher = Fingerprint::default();
        world.hash(&mut hasher);
        let next = u32::try_from(self.from.len()).expect("fewer worlds");
        match self.numbers.entry(hasher.finish()) {
            std::collections::hash_map::Entry::Occupied(known) => (*known.get(), false),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(next);
                self.from.push((from, step));
                self.is_good.push(world.is_goal() || world.has_no_worker());
                (next, true)
            }
        }
    }

    /// How a world was reached. The names of the workers stay the same throughout, which those of merged worlds do not.
    fn trace(&self, setup: &Setup, mut number: u32, last: Option<Step>) -> Counterexample {
        let mut steps: Vec<Step> = last.into_iter().collect();
        while let (from, Some(step)) = self.from[number as usize] {
            steps.push(step);
            number = from;
        }
        steps.reverse();
        let mut world = World::new(setup.executions, setup.faults);
        let mut is_mirrored = false;
        for step in &mut steps {
            let taken = take(&world, setup, *step);
            if is_mirrored {
                step.action = step.action.mirrored();
            }
            world = taken.world;
            is_mirrored ^= taken.is_mirrored;
        }
        Counterexample { steps }
    }

    /// The first world from which no goal is reached without faults.
    fn first_stuck(&self) -> Option<u32> {
        let count = self.from.len();
        let mut begins = vec![0_u32; count + 1];
        for (to, _) in &self.edges {
            begins[*to as usize + 1] += 1;
        }
        for index in 0..count {
            begins[index + 1] += begins[index];
        }
        let mut before = vec![0_u32; self.edges.len()];
        let mut free = begins.clone();
        for (to, from) in &self.edges {
            let place = &mut free[*to as usize];
            before[*place as usize] = *from;
            *place += 1;
        }
        let mut reaches = self.is_good.clone();
        let mut open: Vec<u32> = (0..u32::try_from(count).expect("fewer worlds"))
            .filter(|number| reaches[*number as usize])
            .collect();
        while let Some(number) = open.pop() {
            let range = begins[number as usize] as usize..begins[number as usize + 1] as usize;
            for from in &before[range] {
                if !std::mem::replace(&mut reaches[*from as usize], true) {
                    open.push(*from);
                }
            }
        }
        reaches
            .iter()
            .position(|reaches| !reaches)
            .map(|number| u32::try_from(number).expect("fewer worlds"))
    }
}

/// Explores a setup.
pub(crate) fn explore(setup: &Setup, until: Until, most_worlds: usize) -> Explored {
    let begun = Instant::now();
    let mut worlds = Worlds::default();
    let mut explored = Explored {
        worlds: 0,
        transitions: 0,
        depth: 0,
        goals: 0,
        allowed_overlaps: 0,
        taken: HashSet::new(),
        broken: BTreeMap::new(),
        time: Duration::ZERO,
        is_complete: true,
    };
    let first = World::new(setup.executions, setup.faults);
    let (number, _) = worlds.number(&first, 0, None);
    let mut level = vec![(number, first)];
    let mut kinds = HashSet::new();
    let mut steps = Vec::new();
    'search: while !level.is_empty() {
        let mut next_level = Vec::new();
        for (number, world) in &level {
            explored.goals += usize::from(world.is_goal());
            possible(world, setup, &mut steps);
            for step in &steps {
                let taken = take(world, setup, *step);
                explored.transitions += 1;
                explored.allowed_overlaps += usize::from(taken.found.allowed_overlap);
                kinds.insert((std::mem::discriminant(&step.action), step.fault));
                for broken in taken.found.broken {
                    explored
                        .broken
                        .entry(broken)
                        .or_insert_with(|| worlds.trace(setup, *number, Some(*step)));
                    if until == Until::Broken(broken) {
                        break 'search;
                    }
                }
                let (to, is_new) = worlds.number(&taken.world, *number, Some(*step));
                if step.fault.is_none() && to != *number {
                    worlds.edges.push((to, *number));
                }
                if is_new {
                    next_level.push((to, taken.world));
                }
            }
            if worlds.from.len() > most_worlds {
                explored.is_complete = false;
                break 'search;
            }
        }
        level = next_level;
        explored.depth += 1;
    }
    explored.worlds = worlds.from.len();
    // Only when every world has been seen.
    if level.is_empty()
        && let Some(stuck) = worlds.first_stuck()
    {
        explored
            .broken
            .insert(Broken::Stuck, worlds.trace(setup, stuck, None));
    }
    explored.taken = kinds
        .into_iter()
        .filter_map(|(_, fault)| fault)
        .map(|fault| format!("{fault:?}"))
        .collect();
    explored.time = begun.elapsed();
    explored
}

/// A fast hash with good mixing; the standard one is several times slower in a debug build.
#[derive(Default)]
struct Fingerprint(u64);

impl Fingerprint {
    fn mix(&mut self, word: u64) {
        let mut hash = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
        self.0 = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        let hash = (self.0 ^ self.0 >> 29).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 31
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_i64(&mut self, value: i64) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }
}
