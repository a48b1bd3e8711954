#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm cluster of two hosts, n1 and n2, as namespaces on this machine: run it as root as
#     unshare --net --uts --mount tests/harness/slurm.sh DIR
# It prints "ready" when jobs can be started from its namespaces (nsenter), and ends with its stdin. DIR is for its
# files. There is no authentication (auth/none), and nothing outside of the namespaces reaches it.
set -eu
dir=$1
mkdir -p "$dir"/spool/n1 "$dir"/spool/n2 "$dir"/state
cat >"$dir/slurm.conf" <<END
ClusterName=t
SlurmctldHost=n0(10.9.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/%n.log
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=10.9.0.11 CPUs=2 RealMemory=100
NodeName=n2 NodeAddr=10.9.0.12 CPUs=2 RealMemory=100
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=10 State=UP
END
export SLURM_CONF=$dir/slurm.conf
hostname n0
ip link set lo up
ip link add bridge type bridge
ip address add 10.9.0.1/24 dev bridge
ip link set bridge up
slurmctld -D </dev/null >"$dir/slurmctld.out" 2>&1 &
daemons=($!)
trap 'kill "${daemons[@]}"; wait' EXIT
for i in 1 2; do
  unshare --net --uts bash -c "
    hostname n$i
    ip link set lo up
    until ip link show wire >/dev/null 2>&1; do sleep 0.05; done
    ip address add 10.9.0.1$i/24 dev wire
    ip link set wire up
    exec slurmd -D -N n$i" </dev/null >"$dir/n$i.out" 2>&1 &
  daemons+=($!)
  # The namespace is there when the host has its name.
  until [ "$(nsenter --target $! --uts hostname)" = n$i ]; do sleep 0.05; done
  ip link add wire$i type veth peer name wire netns $!
  ip link set wire$i master bridge up
done
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; do
  kill -0 "${daemons[@]}" 2>/dev/null || exit 1
  sleep 0.1
done
echo ready
cat >/dev/null
# jobs of a test that has failed would survive their daemons
scancel --user=root || true
until [ -z "$(squeue -h)" ]; do sleep 0.1; done
