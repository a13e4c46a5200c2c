"""python /tmp/e/nb/sheet.py NAME: all pictures of a notebook on one sheet, /tmp/e/nb/pictures/NAME/sheet.png"""
import sys
from pathlib import Path
from PIL import Image
folder = Path("/tmp/e/nb/pictures")/sys.argv[1]
ims=[Image.open(p).convert("RGB") for p in sorted(folder.glob("cell*.png"))]
w=max(i.width for i in ims); gap=14
cols=2 if len(ims)>3 else 1
rows=[ims[i:i+cols] for i in range(0,len(ims),cols)]
H=sum(max(i.height for i in r)+gap for r in rows)
s=Image.new("RGB",(cols*(w+gap),H),(90,90,90)); y=0
for r in rows:
    for k,i in enumerate(r): s.paste(i,(k*(w+gap),y))
    y+=max(i.height for i in r)+gap
s.save(folder/"sheet.png"); print(s.size)
