//! How many partitions everything has on a given cluster: tasks, repartition topics, changelogs.
//!
//! A repartition topic has as many partitions as the topics that it meets by key; when it meets none, as many as
//! the largest input of the sub-topologies that write it. Place in the walk: application start and each
//! assignment. Not here: asking the cluster, creating topics.

use std::collections::BTreeMap;

use super::{InternalTopic, PlanError, SubTopology, Topology};
use crate::record::TaskId;
use ottla_client::TopicPartition;

/// An internal topic and how many partitions it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalPartitions {
    /// The topic.
    pub topic: InternalTopic,
    /// Its partitions.
    pub partitions: i32,
}

/// A topology on a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Every task, sorted.
    pub tasks: Vec<TaskId>,
    /// Every internal topic.
    pub internal: Vec<InternalPartitions>,
    /// Partitions of every input topic.
    pub partitions: BTreeMap<String, i32>,
}

impl Topology {
    /// What the topology needs on a cluster whose topics have these numbers of partitions.
    ///
    /// ```
    /// # use ottla_streams::{codec::Utf8, topology::Topology};
    /// let topology = Topology::new("app", |b| {
    ///     b.stream("in", Utf8, Utf8).key_by("by-value", Utf8, |r| r.value.clone()).group().count("counts");
    /// })?;
    /// let plan = topology.plan(&[("in".to_string(), 4)].into()).unwrap();
    /// assert_eq!(plan.tasks.len(), 8, "two sub-topologies, four partitions each");
    /// # Ok::<(), ottla_streams::topology::TopologyError>(())
    /// ```
    pub fn plan(&self, external: &BTreeMap<String, i32>) -> Result<Plan, PlanError> {
        let mut known = BTreeMap::new();
        for sub in self.sub_topologies() {
            for topic in sub.inputs.iter().filter(|topic| !sub.repartitions.contains(topic)) {
                let count = external
                    .get(topic)
                    .ok_or_else(|| PlanError::UnknownTopic { topic: topic.clone(), sub_topology: sub.id })?;
                known.insert(topic.clone(), *count);
            }
        }
        self.fill_repartitions(&mut known);
        self.sub_topologies().iter().try_for_each(|sub| check(sub, &known))?;
        let count_of = |sub: &SubTopology| sub.inputs.iter().map(|topic| known[topic]).max().unwrap_or(0);
        let tasks = self
            .sub_topologies()
            .iter()
            .flat_map(|sub| (0..count_of(sub)).map(|partition| TaskId { sub_topology: sub.id, partition }));
        let internal = self.internal_topics().iter().map(|topic| InternalPartitions {
            topic: topic.clone(),
            partitions: match known.get(&topic.name) {
                Some(count) => *count,
                None => count_of(&self.sub_topologies()[usize::from(topic.partitions_from)]),
            },
        });
        let (tasks, internal) = (tasks.collect(), internal.collect());
        Ok(Plan { tasks, internal, partitions: known })
    }

    /// Gives every repartition topic its number. Each round settles one topic at least: topics cannot go round.
    fn fill_repartitions(&self, known: &mut BTreeMap<String, i32>) {
        loop {
            let before = known.len();
            for sub in self.sub_topologies() {
                for topic in sub.repartitions.iter() {
                    if known.contains_key(topic) {
                        continue;
                    }
                    if let Some(count) = self.count_for(sub, topic, known) {
                        known.insert(topic.clone(), count);
                    }
                }
            }
            if known.len() == before {
                return;
            }
        }
    }

    /// The number of a repartition topic, once what it depends on is known.
    fn count_for(&self, sub: &SubTopology, topic: &String, known: &BTreeMap<String, i32>) -> Option<i32> {
        let mut group: Vec<&String> = vec![topic];
        for other in sub.copartitioned.iter().filter(|group| group.contains(topic)) {
            let fixed = other.iter().find(|topic| !sub.repartitions.contains(topic));
            if let Some(fixed) = fixed {
                return known.get(fixed).copied();
            }
            group.extend(other);
        }
        if let Some(count) = group.iter().find_map(|topic| known.get(*topic)) {
            return Some(*count);
        }
        let writers =
            self.sub_topologies().iter().filter(|sub| group.iter().any(|topic| sub.outputs.contains(topic)));
        let inputs: Vec<&String> = writers.flat_map(|sub| &sub.inputs).collect();
        let counts: Option<Vec<i32>> = inputs.iter().map(|topic| known.get(*topic).copied()).collect();
        counts?.into_iter().max()
    }
}

impl Plan {
    /// The partitions that a task reads, sorted. An input with fewer partitions than the sub-topology's largest is
    /// read by the first tasks only.
    pub fn inputs_of(&self, topology: &Topology, task: TaskId) -> Vec<TopicPartition> {
        topology.sub_topologies().get(usize::from(task.sub_topology)).map_or_else(Vec::new, |sub| {
            sub.inputs
                .iter()
                .filter(|topic| self.partitions.get(*topic).is_some_and(|count| task.partition < *count))
                .map(|topic| TopicPartition::new(topic.as_str(), task.partition))
                .collect()
        })
    }
}

fn check(sub: &SubTopology, known: &BTreeMap<String, i32>) -> Result<(), PlanError> {
    for group in &sub.copartitioned {
        let mut topics = group.iter().map(|topic| (topic, known[topic]));
        let Some((left, left_partitions)) = topics.next() else { continue };
        if let Some((right, right_partitions)) = topics.find(|(_, count)| *count != left_partitions) {
            return Err(PlanError::NotCopartitioned {
                sub_topology: sub.id,
                left: left.clone(),
                left_partitions,
                right: right.clone(),
                right_partitions,
            });
        }
    }
    Ok(())
}
