#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Process 1 of the guest, in its root (see initramfs.sh): sets the machine up, runs the command,
# tells its exit status and turns the machine off. /run/vm is shared with the program `vm`,
# which wrote there:
#   settings   shell variables: SETUP, HUGEPAGES, DIRECTORY, MODULES
#   writable   one line for each shared directory: its tag and its path
#   command    what to run
# and which reads there
#   up         a number, once the command runs; it changes every 5 s as long as the guest's kernel works
#   status     written last: a machine that ends without it has failed
. /run/vm/settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8

# Two devices with a wire between them: a veth pair. Both addresses are of one host, and the kernel would hand
# such packets over without sending them; so the rules below ask the table of local addresses only for packets
# that come in through the pair, and send packets to the other address through the pair. A source that is not
# bound yet (0.0.0.0) becomes the other device's, as it would on two hosts. (Two network namespaces would be
# plainer, but rdma_rxe only works in the first one.)
setup_veth() {
  modprobe -a rdma_rxe rdma_ucm veth || return
  ip link add va mtu 4200 type veth peer name vb mtu 4200 || return # holds an RDMA MTU of 4096
  local to
  for to in all va vb; do
    echo 1 >/proc/sys/net/ipv4/conf/$to/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$to/rp_filter
  done
  # The neighbours are set by hand, since nobody answers ARP for an address that the asking host has, too. One
  # call of ip for all, because each process started costs an emulated machine some 100 ms.
  ip -batch - <<END || return
address add 10.7.0.1/32 dev va
address add 10.7.0.2/32 dev vb
link set va up
link set vb up
neighbour replace 10.7.0.2 lladdr $(</sys/class/net/vb/address) dev va nud permanent
neighbour replace 10.7.0.1 lladdr $(</sys/class/net/va/address) dev vb nud permanent
route add 10.7.0.2 dev va src 10.7.0.1 table 101
route add 10.7.0.1 dev vb src 10.7.0.2 table 102
rule add pref 1 iif va lookup local
rule add pref 2 iif vb lookup local
rule add pref 3 from 10.7.0.1 to 10.7.0.2 lookup 101
rule add pref 4 from 10.7.0.2 to 10.7.0.1 lookup 102
rule add pref 5 from 0.0.0.0/32 to 10.7.0.2 lookup 101
rule add pref 6 from 0.0.0.0/32 to 10.7.0.1 lookup 102
rule add pref 100 lookup local
rule delete pref 0
END
  rdma link add rxe0 type rxe netdev va && rdma link add rxe1 type rxe netdev vb
}

# Makes one device, which both ends of a connection use.
setup_rxe() {
  modprobe -a rdma_rxe rdma_ucm dummy &&
    ip link add dummy0 mtu 4200 type dummy &&
    ip addr add 10.7.0.1/24 dev dummy0 &&
    ip link set dummy0 up &&
    rdma link add rxe0 type rxe netdev dummy0
}

setup_none() {
  :
}

setup_machine() {
  mkdir -p /lib/modules
  ln -sfn "$MODULES" "/lib/modules/$(uname -r)"
  local tag directory
  while read -r tag directory; do
    mkdir -p "$directory"
    # cache=mmap: shared mappings of files work; everything else is written through.
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,rw,cache=mmap \
      "$tag" "$directory" || return
  done </run/vm/writable
  ulimit -l unlimited && ulimit -c 0 && ulimit -n 65536
  echo "$HUGEPAGES" >/proc/sys/vm/nr_hugepages
  hostname vm
  echo '127.0.0.1 localhost vm' >/etc/hosts
  ip link set lo up
  "setup_$SETUP"
}

for port in /sys/class/virtio-ports/*; do
  [ "$(<"$port/name")" = output ] && output=/dev/${port##*/}
done
# The port can be opened once and is no file that a program could open again as /dev/stdout. So
# there is a pipe before it.
exec 9> >(exec cat >"$output")
drain=$!
if setup_machine >&9 2>&1; then
  cd "$DIRECTORY" 2>/dev/null || cd /
  echo 0 >/run/vm/up
  # read, since it needs no process of its own: nothing ever comes through this pipe.
  while ! read -rt 5 -u 8; do
    echo "$((++signs))" >/run/vm/up
  done 8<> <(:) 9>&- &
  bash /run/vm/command </dev/null >&9 2>&1 9>&-
  status=$?
else
  echo "vm: the set-up \"$SETUP\" failed" >&9
  status=125
fi
exec 9>&-
# A process that the command left running may hold the pipe open for ever.
timeout 2 tail -s 0.02 --pid="$drain" -f /dev/null
echo "$status" >/run/vm/status.new
mv /run/vm/status.new /run/vm/status
echo o >/proc/sysrq-trigger # turns the machine off at once: no file needs to be saved before
sleep 60
