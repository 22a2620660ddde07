#!/bin/sh
# Creates a tree with all kinds of metadata, in addition to contents, modes and times, in the empty directory $1.
# Runs as root.
# $2: length of the largest attribute in bytes. Not all file systems support 64 KiB.
set -eu
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
umask 022
cd "$1"
large=$2

data() { # BYTES FILE
    yes "$2" | head -c "$1" > "$2"
}
text() { # BYTES
    yes attribute | tr -d '\n' | head -c "$1"
}

mkdir owners lists attributes specials holes names sticky shared
chmod 1777 sticky
chmod 2775 shared

# twenty owners, and programs that grant their privileges
i=0
while [ $i -lt 20 ]; do
    data $((100 + i)) owners/f$i
    chown $((2000 + i)):$((3000 + i)) owners/f$i
    ln -s f$i owners/l$i
    chown -h $((2100 + i)):$((3100 + i)) owners/l$i
    i=$((i + 1))
done
chmod 4755 owners/f1
chmod 2755 owners/f2
chmod 6711 owners/f3
chmod 4000 owners/f4
chmod 0000 owners/f5
chown 2200:3200 owners sticky shared
chmod 1777 sticky
chmod 2775 shared
data 50 sticky/of-another
chown 2201:3201 sticky/of-another

# access control lists: restricting masks, permissive masks, and inherited lists
for name in plain masked wide large; do data 300 lists/$name; done
data 5000000 lists/large
setfacl -m u:7:rwx,g:8:rx,m::r lists/masked
setfacl -m u:7:rw,g::r,m::rw lists/wide
setfacl -m u:2001:r,u:4000000000:rw,g:3001:r lists/large
mkdir lists/inheriting
setfacl -m u:7:rx,d:u:7:rwx,d:g::r,d:m::rx,d:o::- lists/inheriting
data 20 lists/inheriting/child
mkdir lists/inheriting/below
data 20 lists/inheriting/below/child
setfacl -b lists/inheriting/child

# attributes of users and of root, capabilities
for name in none empty many long large; do data 400 attributes/$name; done
data 6000000 attributes/groups
setfattr -n user.empty attributes/empty
i=0
while [ $i -lt 30 ]; do
    setfattr -n user.number$i -v "value $i" attributes/many
    i=$((i + 1))
done
setfattr -n "user.$(text 250)" -v "a name of 255 bytes" attributes/long
setfattr -n user.binary -v 0x00ff0a0d00 attributes/long
setfattr -n user.large -v "$(text "$large")" attributes/large
setfattr -n user.comment -v groups attributes/groups
setfattr -n user.comment -v directory attributes
setfattr -n trusted.secret -v secret attributes/none
setfattr -n trusted.secret -v secret specials
setfattr -h -n trusted.secret -v link owners/l1
for name in capable owned; do
    cp /bin/true attributes/$name
done
chown 2001:3001 attributes/owned
setcap cap_net_bind_service=ep attributes/capable
setcap cap_chown,cap_fowner=p attributes/owned

# special files
mkfifo -m 640 specials/fifo
mknod -m 600 specials/null c 1 3
mknod -m 660 specials/disk b 7 250
mknod -m 640 specials/far c 300 70000
chown 2001:3001 specials/fifo specials/disk
setfacl -m u:7:rw specials/null

# hard links in one directory and in several, of small and large files
mkdir tied tied/below
i=0
while [ $i -lt 10 ]; do
    data $((1 + i * 500000)) tied/f$i
    ln tied/f$i tied/below/a$i
    ln tied/f$i tied/below/b$i
    ln tied/f$i owners/tied$i
    i=$((i + 1))
done
for name in tied/link tied/fifo tied/null; do
    case $name in
    */link) ln -s f1 $name ;;
    */fifo) mkfifo $name ;;
    */null) mknod $name c 1 3 ;;
    esac
    chown -h 2005:3005 $name
    ln $name tied/below/
    ln $name owners/
done
chown 2001:3001 tied/f3
setfattr -n user.comment -v tied tied/f4
setfacl -m u:7:rw tied/f5

# holes
truncate -s 8G holes/large
for at in 0 1 1024 1048576 2097151; do
    data 4096 holes/page
    dd if=holes/page of=holes/large bs=4096 seek=$at conv=notrunc status=none
done
rm holes/page
truncate -s 20M holes/nothing
data 5000000 holes/beginning
truncate -s 20000001 holes/beginning
truncate -s 12M holes/end
data 4096 holes/end.data
cat holes/end.data >> holes/end
rm holes/end.data

truncate -s 64K holes/small
data 4096 holes/page
dd if=holes/page of=holes/small bs=4096 seek=3 conv=notrunc status=none
rm holes/page
truncate -s 300000 holes/small-nothing

# names
data 7 "names/ line
break"
data 7 "names/$(printf '\377\376 not UTF-8')"
data 7 "names/-rf *?[a]\$(\`'\"\\"
data 7 "names/$(text 255)"
ln -s "$(text 1000)" names/long-link
ln -s ../../nowhere names/nowhere

# times with nanoseconds; directories last
find . -depth -exec touch -h -d "2017-08-09 10:11:12.123456789" {} +
touch -d "1969-12-31 23:59:58.000000001 UTC" owners/f7
